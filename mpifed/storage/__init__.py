"""What a run leaves on disk, and reading it back."""
