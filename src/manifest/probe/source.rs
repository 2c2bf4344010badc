//! FFmpeg's view of one sample: it reads through us, so that it can open nothing else, sees no byte of the file outside of
//! the sample and reads no more than allowed.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ffmpeg_next::ffi;

/// Bytes that FFmpeg reads at a time. A demux pass reads nearly all of a file in order; fewer, larger reads than its
/// default of 32 KiB pay on network storage, and one buffer a thread is small.
const BUFFER: usize = 128 << 10;

/// What a probe may take at most. A file that needs more is hostile, or on storage that no training could use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Wall time.
    pub(super) time: Duration,
    /// Bytes read: re-reading is bounded, as when a broken index sends the demuxer to and fro.
    pub(super) bytes: u64,
}

impl Limits {
    pub(super) fn for_len(len: u64) -> Limits {
        // 30 s, and a second for each 2 MiB: slower than any disk. Each byte four times, and 64 MiB for seeking in a
        // small file.
        Limits { time: Duration::from_secs(30 + (len >> 21)), bytes: len.saturating_mul(4).saturating_add(64 << 20) }
    }
}

/// Bytes of a file that are to look like a file of their own: all of it, or a member of a tar. They lie within the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) file: &'a File,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A part of a file with a cursor and limits, and the `AVIOContext` that reads from it.
pub(super) struct Source {
    context: NonNull<ffi::AVIOContext>,
    /// Made by `Box::leak`: the callbacks reach it through opaque pointers, hence no `Box` here.
    state: NonNull<State>,
}

struct State {
    file: File,
    /// Where the part begins in the file.
    base: u64,
    len: u64,
    /// From the part's begin on.
    at: u64,
    end: Instant,
    bytes_left: u64,
    /// What stopped it, if something did: FFmpeg itself only says that something went wrong.
    fault: Option<String>,
}

impl Source {
    pub(super) fn new(part: Part<'_>, limits: Limits) -> io::Result<Source> {
        let Part { file, offset: base, len } = part;
        let file = file.try_clone()?;
        let end = Instant::now() + limits.time;
        let state = State { file, base, len, at: 0, end, bytes_left: limits.bytes, fault: None };
        let state = NonNull::from(Box::leak(Box::new(state)));
        // SAFETY: the buffer is FFmpeg's to own, as `avio_alloc_context` wants it; the state outlives the context,
        // which only `drop` frees. A failure frees what was made before.
        unsafe {
            let buffer = ffi::av_malloc(BUFFER).cast::<u8>();
            let opaque = state.as_ptr().cast();
            let context = match buffer.is_null() {
                true => std::ptr::null_mut(),
                false => ffi::avio_alloc_context(buffer, BUFFER as c_int, 0, opaque, Some(read), None, Some(seek)),
            };
            let Some(context) = NonNull::new(context) else {
                ffi::av_free(buffer.cast());
                drop(Box::from_raw(state.as_ptr()));
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            Ok(Source { context, state })
        }
    }

    pub(super) fn context(&self) -> *mut ffi::AVIOContext {
        self.context.as_ptr()
    }

    /// FFmpeg asks it between steps whether to go on.
    pub(super) fn interrupt(&self) -> ffi::AVIOInterruptCB {
        ffi::AVIOInterruptCB { callback: Some(interrupted), opaque: self.state.as_ptr().cast() }
    }

    /// Whether the limits are kept; for loops of our own.
    pub(super) fn within_limits(&mut self) -> bool {
        // SAFETY: callbacks run only inside FFmpeg's functions, none of which runs now.
        unsafe { self.state.as_mut() }.on_time()
    }

    /// What stopped reading, if something did.
    pub(super) fn fault(&self) -> Option<String> {
        // SAFETY: as above.
        unsafe { self.state.as_ref() }.fault.clone()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut context = self.context.as_ptr();
        // SAFETY: made by `new`, freed once; FFmpeg may have replaced the buffer, so it is freed through the
        // context. No callback can come after that, so the state has no other user.
        unsafe {
            ffi::av_freep((&raw mut (*context).buffer).cast());
            ffi::avio_context_free(&mut context);
            drop(Box::from_raw(self.state.as_ptr()));
        }
    }
}

impl State {
    fn on_time(&mut self) -> bool {
        if Instant::now() >= self.end {
            self.fault.get_or_insert_with(|| "it takes too long to read".into());
        }
        self.fault.is_none()
    }

    fn read(&mut self, out: *mut c_void, size: usize) -> c_int {
        if !self.on_time() {
            return ffi::AVERROR_EXIT;
        }
        let size = size.min(self.len.saturating_sub(self.at) as usize);
        if size == 0 {
            return ffi::AVERROR_EOF;
        }
        if self.bytes_left < size as u64 {
            self.fault = Some("its index leads to and fro without end".into());
            return ffi::AVERROR_EXIT;
        }
        // SAFETY: FFmpeg gives `size` writable bytes, which may be fresh memory: `pread` only writes to them.
        let n = unsafe { libc::pread(self.file.as_raw_fd(), out, size, (self.base + self.at) as libc::off_t) };
        match n {
            0 => ffi::AVERROR_EOF,
            1.. => {
                self.at += n as u64;
                self.bytes_left -= n as u64;
                n as c_int
            }
            _ => {
                let error = io::Error::last_os_error();
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                self.fault = Some(format!("reading at byte {} failed: {error}", self.base + self.at));
                ffi::AVERROR(code)
            }
        }
    }

    fn seek(&mut self, offset: i64, whence: c_int) -> i64 {
        let from = match whence & !ffi::AVSEEK_FORCE {
            ffi::AVSEEK_SIZE => return self.len as i64,
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.at,
            libc::SEEK_END => self.len,
            _ => return i64::from(ffi::AVERROR(libc::EINVAL)),
        };
        // Behind the end is a place too, as with a file: reading there gives the end.
        match from.checked_add_signed(offset).filter(|&at| i64::try_from(at).is_ok()) {
            Some(at) => {
                self.at = at;
                at as i64
            }
            None => i64::from(ffi::AVERROR(libc::EINVAL)),
        }
    }
}

/// # Safety
/// FFmpeg calls it with the opaque pointer of [`Source::new`] and `size` writable bytes.
unsafe extern "C" fn read(opaque: *mut c_void, out: *mut u8, size: c_int) -> c_int {
    // SAFETY: by the contract above; only one callback runs at a time.
    unsafe { &mut *opaque.cast::<State>() }.read(out.cast(), usize::try_from(size).unwrap_or(0))
}

/// # Safety
/// FFmpeg calls it with the opaque pointer of [`Source::new`].
unsafe extern "C" fn seek(opaque: *mut c_void, offset: i64, whence: c_int) -> i64 {
    // SAFETY: by the contract above; only one callback runs at a time.
    unsafe { &mut *opaque.cast::<State>() }.seek(offset, whence)
}

/// # Safety
/// FFmpeg calls it with the opaque pointer of [`Source::new`].
unsafe extern "C" fn interrupted(opaque: *mut c_void) -> c_int {
    // SAFETY: by the contract above; only one callback runs at a time.
    c_int::from(!unsafe { &mut *opaque.cast::<State>() }.on_time())
}
