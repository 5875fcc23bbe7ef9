"""Behaviour of earlier generations of the API, and what makes programs written for Ray run here."""
