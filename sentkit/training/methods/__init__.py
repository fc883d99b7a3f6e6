"""One paper, or one objective that papers compare with, is one file."""
