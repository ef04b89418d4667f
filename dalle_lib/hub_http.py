"""The HTTP client of huggingface_hub, whose errors it passes on: httpx2 since its version 2, httpx before."""

try:
    from huggingface_hub.utils import httpx
except ImportError:
    import httpx

__all__ = ["httpx"]
