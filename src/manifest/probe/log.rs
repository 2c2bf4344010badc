//! FFmpeg's log lines: none on the terminal, all at `debug`, and the last complaint kept for the reason of a bad file.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use ffmpeg_next::ffi;

thread_local! {
    static COMPLAINT: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[cfg(target_arch = "x86_64")]
type Arguments = *mut ffi::__va_list_tag;
#[cfg(not(target_arch = "x86_64"))]
type Arguments = ffi::va_list;

/// Sends FFmpeg's lines to `tracing` from now on. Cheap to repeat.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the callback has the type that FFmpeg asks for and may be called from any thread.
    ONCE.call_once(|| unsafe { ffi::av_log_set_callback(Some(line)) });
}

/// FFmpeg's last complaint on this thread since the last call.
pub(super) fn take_complaint() -> Option<String> {
    COMPLAINT.take()
}

/// # Safety
/// FFmpeg calls it with a `printf` format and its arguments.
unsafe extern "C" fn line(_: *mut c_void, level: c_int, format: *const c_char, arguments: Arguments) {
    if level > ffi::AV_LOG_WARNING {
        return;
    }
    let mut text = [0 as c_char; 512];
    let mut prefix: c_int = 0;
    // SAFETY: as FFmpeg's default callback does it, without the object's name; the line is cut to the buffer and
    // ends with a zero.
    let text = unsafe {
        let size = text.len() as c_int;
        let none = std::ptr::null_mut();
        ffi::av_log_format_line(none, level, format, arguments, text.as_mut_ptr(), size, &mut prefix);
        CStr::from_ptr(text.as_ptr())
    };
    // A panic (of a tracing subscriber, say) must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let text = text.to_string_lossy().trim().to_owned();
        tracing::debug!(target: "helix_shm::ffmpeg", "{text}");
        if level <= ffi::AV_LOG_ERROR && !text.is_empty() {
            COMPLAINT.set(Some(text));
        }
    }));
}
