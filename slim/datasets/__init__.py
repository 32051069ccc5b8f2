"""Data sets: their record files on disk and the converters that write them."""
