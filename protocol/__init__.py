"""The contract between supervisor, workers and clients.

Imports nothing of ours: the standard library and msgspec only. ``frame_stream`` is the one exception, it adapts
the frames to trio.
"""
