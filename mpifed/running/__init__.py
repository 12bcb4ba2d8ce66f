"""The loop around rounds: stopping, evaluation, checkpoints, signals, sweeps."""
