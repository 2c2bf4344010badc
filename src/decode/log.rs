//! FFmpeg's log lines: none on the terminal, all at `debug` with the stage they belong to, and the last complaint
//! kept so that a bad sample's reason can quote it.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use ffmpeg_next::ffi;

use super::Stage;

thread_local! {
    static STAGE: Cell<Stage> = const { Cell::new(Stage::Open) };
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[cfg(target_arch = "x86_64")]
type Arguments = *mut ffi::__va_list_tag;
#[cfg(not(target_arch = "x86_64"))]
type Arguments = ffi::va_list;

/// Sends FFmpeg's lines to `tracing` from now on. Cheap to repeat.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the callback has the type that FFmpeg asks for and may be called from any thread.
        unsafe {
            ffi::av_log_set_level(ffi::AV_LOG_WARNING);
            ffi::av_log_set_callback(Some(line));
        }
    });
}

/// The stage that this thread's next lines belong to; forgets an earlier complaint when a sample starts.
pub(super) fn enter(stage: Stage) {
    STAGE.set(stage);
    if stage == Stage::Open {
        LAST_ERROR.take();
    }
}

/// FFmpeg's last complaint about this sample.
pub(super) fn last_error() -> Option<String> {
    LAST_ERROR.with_borrow(Clone::clone)
}

/// # Safety
/// FFmpeg calls it with a `printf` format and its arguments.
unsafe extern "C" fn line(class: *mut libc::c_void, level: c_int, format: *const c_char, arguments: Arguments) {
    if level > ffi::AV_LOG_WARNING {
        return;
    }
    let mut text = [0 as c_char; 512];
    let mut prefix: c_int = 1;
    // SAFETY: as FFmpeg's default callback does it; the line is cut to the buffer and ends with a zero.
    let text = unsafe {
        let size = text.len() as c_int;
        ffi::av_log_format_line(class, level, format, arguments, text.as_mut_ptr(), size, &mut prefix);
        CStr::from_ptr(text.as_ptr())
    };
    // A panic (of a tracing subscriber, say) must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let text = without_addresses(text.to_string_lossy().trim());
        tracing::debug!(target: "helix_shm::ffmpeg", stage = STAGE.get().name(), "{text}");
        if level <= ffi::AV_LOG_ERROR {
            LAST_ERROR.set(Some(text));
        }
    }));
}

/// `[h264 @ 0x55d0c8] text` without the address, so that a reason is the same in every run.
fn without_addresses(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" @ 0x") {
        out.push_str(before);
        rest = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn reasons_carry_no_addresses() {
        assert_eq!(super::without_addresses("[h264 @ 0x55d0c8f0] a @ 0xff] b"), "[h264] a] b");
        assert_eq!(super::without_addresses("plain"), "plain");
    }
}
