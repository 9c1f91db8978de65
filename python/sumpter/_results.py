"""Memory for large results: that of results which are gone.

NumPy has the system map and zero new pages for every large array. Of a result that is written as a
whole that costs a fifth of the operation's processor time, so the pages of one that was dropped
serve the next. Until then the system may take them back whenever memory is short.
"""

import mmap
import threading
import weakref

import numpy as np

# malloc keeps what is smaller, up to 32 MiB of each, so that its pages are there already.
LEAST_BYTES = 32 << 20
# As much is kept; what has waited longest goes first.
KEPT_BYTES = 256 << 20

# NumPy asks for large pages as well.
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
# The content may be lost, and no page is zeroed unless that has happened.
_RECLAIMABLE = getattr(mmap, "MADV_FREE", None)


class ResultMemory:
    """Lends memory to arrays, and takes it back when no array refers to it any more."""

    def __init__(self) -> None:
        # By the time when they came back, the oldest first.
        self._free: list[mmap.mmap] = []
        # A garbage collection while it is held may give memory back in the same thread.
        self._lock = threading.RLock()

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait for the next array."""
        with self._lock:
            return sum(map(len, self._free))

    def empty_like(self, given: np.ndarray) -> np.ndarray:
        """A contiguous array of the shape and element type of `given`, with any content.

        A large one does not own its memory, so `ndarray.resize()` refuses it.
        """
        if given.nbytes < LEAST_BYTES:
            return np.empty(given.shape, given.dtype)
        memory = self._take(given.nbytes)
        # Every view of the memory refers to this array, since its base is no array.
        owner = np.frombuffer(memory, np.uint8)
        weakref.finalize(owner, self._give, memory).atexit = False
        return owner.view(given.dtype).reshape(given.shape)

    def _take(self, size: int) -> mmap.mmap:
        with self._lock:
            # A copy: memory may come back, and other memory go, between any two steps.
            for memory in reversed(list(self._free)):
                if len(memory) == size and memory in self._free:
                    self._free.remove(memory)
                    return memory
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _LARGE_PAGES is not None:
            memory.madvise(_LARGE_PAGES)
        return memory

    def _give(self, memory: mmap.mmap) -> None:
        if _RECLAIMABLE is None or len(memory) > KEPT_BYTES:
            return
        memory.madvise(_RECLAIMABLE)
        with self._lock:
            self._free.append(memory)
            while self.kept_bytes > KEPT_BYTES:
                del self._free[:1]
