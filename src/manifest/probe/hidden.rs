//! Packets that show no frame, by the first bits of their content.

/// Whether a packet of the codec only feeds the decoder: the alternate reference frames of VP8 and VP9, which some
/// muxers store as packets of their own. Other codecs show a frame a packet in the containers that are trusted.
pub(super) fn shows_nothing(codec: &str, data: &[u8]) -> bool {
    let (Some(&first), Some(&last)) = (data.first(), data.last()) else { return true };
    match codec {
        // RFC 6386, 9.1: bit 4 of the frame tag is show_frame.
        "vp8" => first & 0x10 == 0,
        // VP9 bitstream, annex B: a superframe ends with a marker 0b110xxxxx, and shows one of its frames.
        "vp9" if last & 0xe0 == 0xc0 => false,
        "vp9" => vp9_is_hidden(first),
        _ => false,
    }
}

/// VP9 bitstream, 6.2: frame_marker(2) profile_low profile_high [reserved if profile 3] show_existing_frame
/// frame_type show_frame.
fn vp9_is_hidden(first: u8) -> bool {
    let bit = |i: u8| first >> (7 - i) & 1;
    let at = if bit(2) + 2 * bit(3) == 3 { 5 } else { 4 };
    bit(at) == 0 && bit(at + 2) == 0
}

#[cfg(test)]
mod tests {
    use super::shows_nothing;

    #[test]
    fn alternate_references_are_not_shown() {
        assert!(!shows_nothing("vp8", &[0x10, 0]));
        assert!(shows_nothing("vp8", &[0x00, 0]));
        // Marker 10, profile 0, show_existing 0, key, show 1.
        assert!(!shows_nothing("vp9", &[0b1000_0010, 0]));
        assert!(shows_nothing("vp9", &[0b1000_0100, 0]));
        assert!(!shows_nothing("vp9", &[0b1000_1000, 0]), "an existing frame is shown");
        assert!(!shows_nothing("vp9", &[0b1000_0100, 0xc1]), "a superframe shows its last");
        assert!(shows_nothing("vp9", &[0b1011_0000, 0]), "profile 3 has one bit more");
        assert!(shows_nothing("h264", &[]));
        assert!(!shows_nothing("h264", &[0]));
    }
}
