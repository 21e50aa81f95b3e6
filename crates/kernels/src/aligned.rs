//! Large buffers on huge pages: reading weights in sequence then costs fewer page walks, and the prefetcher, which
//! stops at page borders, runs further.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The size of a huge page, and the alignment of buffers that are at least as large.
const HUGE: usize = 2 << 20;
/// The alignment of smaller buffers: a vector of AVX-512.
const SMALL: usize = 64;

/// Zeroed bytes, aligned to 64 or to a huge page.
pub(crate) struct Aligned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its bytes; shared access is by `&self` and reads only.
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    pub(crate) fn zeroed(len: usize) -> Aligned {
        let align = if len >= HUGE { HUGE } else { SMALL };
        // A layout of an impossible size is the same misfortune as memory that is not there.
        let Ok(layout) = Layout::from_size_align(len.max(1), align) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if len >= HUGE {
            // SAFETY: the range is this allocation; advice changes no content, and refused advice costs nothing.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Aligned { start, layout }
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is this long and zeroed, hence initialised.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
