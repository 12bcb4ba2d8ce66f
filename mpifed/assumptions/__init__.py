"""What the assumptions of theorems look like on a job: estimates along its run."""
