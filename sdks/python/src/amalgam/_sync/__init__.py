# Generated from _async/__init__.py by scripts/generate_sync.py; do not edit.
"""The blocking client, generated from ``_async``."""
