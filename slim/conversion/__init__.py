"""Conversion: from original images of any kind to the record files of a data set."""
