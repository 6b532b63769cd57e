"""Adaptation: a pretrained network keeps its body and gets a new head, fitted on features computed once."""
