//! FFmpeg's log lines: none on the terminal, all at `debug` with the stage they belong to, and each thread's last
//! complaint kept, so that the reason of a bad file or sample can quote it.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use ffmpeg_next::ffi;

thread_local! {
    static STAGE: Cell<&'static str> = const { Cell::new("") };
    static COMPLAINT: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[cfg(target_arch = "x86_64")]
type Arguments = *mut ffi::__va_list_tag;
#[cfg(not(target_arch = "x86_64"))]
type Arguments = ffi::va_list;

/// Sends FFmpeg's lines to `tracing` from now on, and nowhere else. Cheap to repeat.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the callback has the type that FFmpeg asks for and may be called from any thread.
    ONCE.call_once(|| unsafe { ffi::av_log_set_callback(Some(line)) });
}

/// Begins another file or sample on this thread: what was complained of before is not about it.
pub(crate) fn begin(stage: &'static str) {
    STAGE.set(stage);
    COMPLAINT.take();
}

/// The stage that this thread's next lines belong to.
pub(crate) fn enter(stage: &'static str) {
    STAGE.set(stage);
}

/// FFmpeg's last complaint on this thread since [`begin`], with the name of the part of FFmpeg that made it:
/// `[h264] no frame!`.
pub(crate) fn complaint() -> Option<String> {
    COMPLAINT.with_borrow(Clone::clone)
}

/// # Safety
/// FFmpeg calls it with a `printf` format and its arguments.
unsafe extern "C" fn line(class: *mut c_void, level: c_int, format: *const c_char, arguments: Arguments) {
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
        tracing::debug!(target: "helix_shm::ffmpeg", stage = STAGE.get(), "{text}");
        if level <= ffi::AV_LOG_ERROR && !text.is_empty() {
            COMPLAINT.set(Some(text));
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
