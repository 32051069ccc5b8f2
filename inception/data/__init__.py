"""Programs that turn pictures into record files."""
