"""Adapters for agent frameworks. Each module needs the packages of an extra: ``pip install amalgam-sdk[langgraph]``."""
