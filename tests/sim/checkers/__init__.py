"""What must hold: one function a promise."""
