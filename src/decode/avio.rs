//! FFmpeg's reads, served from an [`Input`]: it never opens a file of its own.

use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;

use super::input::Input;

/// Bytes that FFmpeg reads ahead of its demuxer; its own default.
const BUFFER: usize = 32 << 10;

/// An `AVIOContext` over an [`Input`], and the input's cursor.
pub(super) struct Avio<'a> {
    context: NonNull<ffi::AVIOContext>,
    /// Made by `Box::into_raw`; the callbacks reach it through the context's opaque pointer, hence no `Box` here.
    cursor: NonNull<Cursor<'a>>,
    input: PhantomData<&'a Input>,
}

struct Cursor<'a> {
    input: &'a Input,
    at: u64,
    error: Option<io::Error>,
}

impl<'a> Avio<'a> {
    pub(super) fn new(input: &'a Input) -> Avio<'a> {
        let cursor = Box::new(Cursor { input, at: 0, error: None });
        let cursor = NonNull::from(Box::leak(cursor));
        // SAFETY: the buffer is FFmpeg's to own, as `avio_alloc_context` wants it; the cursor outlives the context,
        // which only `drop` frees.
        let context = unsafe {
            let buffer = NonNull::new(ffi::av_malloc(BUFFER).cast::<u8>()).expect("memory for a read buffer");
            let opaque = cursor.as_ptr().cast();
            let size = BUFFER as c_int;
            let made = ffi::avio_alloc_context(buffer.as_ptr(), size, 0, opaque, Some(read), None, Some(seek));
            NonNull::new(made).expect("memory for an AVIOContext")
        };
        Avio { context, cursor, input: PhantomData }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::AVIOContext {
        self.context.as_ptr()
    }

    /// The first error of storage since the last call; FFmpeg itself only says that something went wrong.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        // SAFETY: callbacks run only inside FFmpeg's functions, none of which runs now.
        unsafe { self.cursor.as_mut() }.error.take()
    }
}

impl Drop for Avio<'_> {
    fn drop(&mut self) {
        let mut context = self.context.as_ptr();
        // SAFETY: made by `new`, freed once; FFmpeg may have replaced the buffer, so it is freed through the
        // context. No callback can come after that, so the cursor has no other user.
        unsafe {
            ffi::av_freep((&raw mut (*context).buffer).cast());
            ffi::avio_context_free(&mut context);
            drop(Box::from_raw(self.cursor.as_ptr()));
        }
    }
}

/// # Safety
/// FFmpeg calls it with the opaque pointer of `Avio::new` and `size` writable bytes.
unsafe extern "C" fn read(opaque: *mut libc::c_void, out: *mut u8, size: c_int) -> c_int {
    // SAFETY: by the contract above; only one callback runs at a time.
    let cursor = unsafe { &mut *opaque.cast::<Cursor<'_>>() };
    let copy = |bytes: &[u8]| {
        // SAFETY: `out` has room for `size` bytes, of which there are no more here. It may be fresh memory, and what
        // lies behind the bytes given may still be used by FFmpeg: neither read nor written.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len()) };
        bytes.len()
    };
    let size = usize::try_from(size).unwrap_or(0);
    // A panic must not unwind into C.
    match catch_unwind(AssertUnwindSafe(|| cursor.input.with_bytes(cursor.at, size, copy))) {
        Ok(Ok(0)) => ffi::AVERROR_EOF,
        Ok(Ok(n)) => {
            cursor.at += n as u64;
            n as c_int
        }
        Ok(Err(e)) => {
            cursor.error.get_or_insert(e);
            ffi::AVERROR(libc::EIO)
        }
        Err(_) => ffi::AVERROR(libc::EIO),
    }
}

/// # Safety
/// FFmpeg calls it with the opaque pointer of `Avio::new`.
unsafe extern "C" fn seek(opaque: *mut libc::c_void, offset: i64, whence: c_int) -> i64 {
    // SAFETY: by the contract above; only one callback runs at a time.
    let cursor = unsafe { &mut *opaque.cast::<Cursor<'_>>() };
    let len = cursor.input.len();
    let from = match whence & !ffi::AVSEEK_FORCE {
        ffi::AVSEEK_SIZE => return len as i64,
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => cursor.at,
        libc::SEEK_END => len,
        _ => return i64::from(ffi::AVERROR(libc::EINVAL)),
    };
    match from.checked_add_signed(offset) {
        // Beyond the end is a place too, as with a file: reading there gives the end.
        Some(at) if i64::try_from(at).is_ok() => {
            cursor.at = at;
            at as i64
        }
        _ => i64::from(ffi::AVERROR(libc::EINVAL)),
    }
}
