"""What a user may write: typed, strictly loaded settings."""
