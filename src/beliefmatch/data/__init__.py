"""Data: images and labels as tensors, one file for each source."""
