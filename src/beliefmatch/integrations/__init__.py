"""Belief matching inside other frameworks and file formats; each module is loaded where it is used."""
