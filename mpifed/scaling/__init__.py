"""The α-β-γ model of a round's time, its measurement and its predictions."""
