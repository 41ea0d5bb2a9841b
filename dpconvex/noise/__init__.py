"""Samplers of noise, and exact privacy profiles of noise laws."""
