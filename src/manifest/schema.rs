//! The columns of a manifest file, by name and type, and the keys of its metadata.

use std::collections::HashMap;

use arrow_schema::{DataType, Field, Schema};

/// Version of the columns. A reader takes this one and [`WITHOUT_SOUND`], and refuses any other.
pub(super) const FORMAT: &str = "3";
/// The version before, which lacks the columns of sound at the end.
pub(super) const WITHOUT_SOUND: &str = "2";
/// Key of [`FORMAT`] in the schema's metadata.
pub(super) const KEY_FORMAT: &str = "helix.format";
/// Key of the options the manifest was made with, in the schema's metadata.
pub(super) const KEY_OPTIONS: &str = "helix.options";
/// Key of the fingerprint. It is in the footer's metadata and not the schema's, because it is known last; and a tool
/// that edits rows copies the schema, but not the footer, so that no stale fingerprint survives an edit.
pub(super) const KEY_FINGERPRINT: &str = "helix.fingerprint";
/// Key of the number of good rows, in the footer's metadata.
pub(super) const KEY_GOOD: &str = "helix.good";
/// Key of the number of bad rows, in the footer's metadata.
pub(super) const KEY_BAD: &str = "helix.bad";

/// The columns in the order of the file. `writer` fills and `layout` reads them in this order.
pub(super) fn fields() -> Vec<Field> {
    let plain = |name: &str, kind| Field::new(name, kind, false);
    let list = |name: &str, kind| Field::new_list(name, Field::new_list_field(kind, true), false);
    vec![
        plain("path", DataType::Utf8),
        plain("file_len", DataType::UInt64),
        plain("offset", DataType::UInt64),
        plain("len", DataType::UInt64),
        plain("mtime_ns", DataType::Int64),
        plain("container", DataType::Utf8),
        plain("codec", DataType::Utf8),
        plain("pix_fmt", DataType::Utf8),
        plain("stream", DataType::UInt32),
        plain("coded_width", DataType::UInt16),
        plain("coded_height", DataType::UInt16),
        plain("rotation", DataType::UInt16),
        plain("sar_num", DataType::UInt32),
        plain("sar_den", DataType::UInt32),
        plain("fps_num", DataType::UInt32),
        plain("fps_den", DataType::UInt32),
        plain("time_base_num", DataType::UInt32),
        plain("time_base_den", DataType::UInt32),
        plain("duration", DataType::Int64),
        plain("frames", DataType::UInt32),
        plain("seekable", DataType::Boolean),
        list("pts", DataType::Int64),
        list("key_frames", DataType::UInt32),
        list("key_offsets", DataType::Int64),
        plain("text", DataType::Utf8),
        Field::new("error", DataType::Utf8, true),
        plain("sound_rate", DataType::UInt32),
        plain("sound_channels", DataType::UInt16),
        plain("sound_ms", DataType::UInt32),
    ]
}

/// Columns of sound, the last ones.
const SOUND: usize = 3;

/// The whole schema of a new file.
pub(super) fn schema(options: &str) -> Schema {
    let metadata =
        HashMap::from([(KEY_FORMAT.to_owned(), FORMAT.to_owned()), (KEY_OPTIONS.to_owned(), options.to_owned())]);
    Schema::new_with_metadata(fields(), metadata)
}

/// Says in which column a file's schema differs from ours, if it does.
///
/// Nullability and the name of a list's item are left to the writer: tools differ in them and the bytes do not.
pub(super) fn difference(found: &Schema, has_sound: bool) -> Option<String> {
    let mut wanted = fields();
    if !has_sound {
        wanted.truncate(wanted.len() - SOUND);
    }
    for (i, want) in wanted.iter().enumerate() {
        let Some(have) = found.fields().get(i) else {
            return Some(format!("column `{}` is missing", want.name()));
        };
        if have.name() != want.name() {
            return Some(format!("column {i} is `{}`; wanted `{}`", have.name(), want.name()));
        }
        let same = match (have.data_type(), want.data_type()) {
            (DataType::List(a), DataType::List(b)) => a.data_type() == b.data_type(),
            (a, b) => a == b,
        };
        if !same {
            return Some(format!("column `{}` is {}; wanted {}", want.name(), have.data_type(), want.data_type()));
        }
    }
    found.fields().get(wanted.len()).map(|extra| format!("column `{}` is not one of a manifest", extra.name()))
}
