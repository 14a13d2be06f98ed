"""The client for asyncio. The files of ``_sync`` are generated from these by ``scripts/generate_sync.py``."""
