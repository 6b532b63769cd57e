"""Adapting a trained classifier: its last layer fitted anew on features that are computed once."""
