"""Experiments: methods and data put together into records; nothing here prints or draws."""
