"""The loop around rounds: evaluation, checkpoints, resumption, stopping, sweeps."""
