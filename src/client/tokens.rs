//! Captions as the token ids of a tokenizer.
//!
//! They are made by the thread that assembles batches, ahead of `next`: the captions are in the manifest that this process
//! has mapped, and nobody knows how many tokens a caption has before it is taken apart, so that a region could only
//! guess. With the feature `tokenizers` a `tokenizer.json` does it.

use std::sync::Arc;

use super::fields::Ragged;

/// Makes the ids of a text.
pub(crate) type Encode = Arc<dyn Fn(&str) -> Result<Vec<u32>, String> + Send + Sync>;

/// What encodes as a file says: a `tokenizer.json`, special tokens included.
#[cfg(feature = "tokenizers")]
pub(super) fn open(path: &std::path::Path) -> std::io::Result<Encode> {
    let fail = |e| std::io::Error::other(format!("{}: {e}", path.display()));
    let tokenizer = tokenizers::Tokenizer::from_file(path).map_err(fail)?;
    Ok(Arc::new(move |text| {
        let encoding = tokenizer.encode(text, true).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }))
}

/// The ids of each text, as `i32`.
pub(super) fn ids<'a>(encode: &Encode, texts: impl Iterator<Item = &'a str>) -> Result<Ragged, String> {
    let mut all = Ragged::of(std::iter::empty());
    for text in texts {
        for id in encode(text)? {
            let id = i32::try_from(id).map_err(|_| format!("token {id} of `{text}` is above {}", i32::MAX))?;
            all.data.extend_from_slice(&id.to_ne_bytes());
        }
        all.offsets.push(all.data.len());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_each_text_follow_each_other() {
        let encode: Encode = Arc::new(|text| match text {
            "bad" => Err("no".into()),
            text => Ok(text.split(' ').map(|word| word.len() as u32).collect()),
        });
        let ids = ids(&encode, ["a bird", "", "flies"].into_iter()).expect("ids");
        assert_eq!((ids.len(), ids.offsets.clone()), (3, vec![0, 8, 12, 16]));
        assert_eq!((ids.numbers(0), ids.numbers(2)), (Some(vec![1_i32, 4]), Some(vec![5])));
        assert!(super::ids(&encode, ["bad"].into_iter()).is_err());
        let large: Encode = Arc::new(|_| Ok(vec![u32::MAX]));
        assert!(super::ids(&large, ["a"].into_iter()).expect_err("too large").contains("above"));
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_tokenizer_json_is_followed() {
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Lowercase"},
            "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0,"a":1,"bird":2,"flies":3},"unk_token":"[UNK]"}}"#;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, json).expect("a file");
        let encode = open(&path).expect("a tokenizer");
        let found = ids(&encode, ["A bird flies", "far"].into_iter()).expect("ids");
        assert_eq!((found.numbers(0), found.numbers(1)), (Some(vec![1, 2, 3]), Some(vec![0])));
        std::fs::write(&path, "{}").expect("a file");
        assert!(open(&path).err().expect("no tokenizer").to_string().contains("tokenizer.json"));
    }
}
