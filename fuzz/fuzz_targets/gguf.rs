//! Bytes that nobody vouches for, through the GGUF reader and the config.

#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use model::config::Config;
use model::gguf::Gguf;

fuzz_target!(|bytes: &[u8]| {
    let Ok((metadata, tensors)) = Gguf::parse(bytes, "fuzzed.gguf") else { return };
    for tensor in &tensors {
        assert!(tensor.offset + tensor.bytes <= bytes.len());
        let values: usize = tensor.shape.iter().product();
        assert_eq!(values / tensor.format.block_len() * tensor.format.block_bytes(), tensor.bytes);
    }
    for (key, _) in metadata.iter() {
        // Every accessor must cope with a value of any type.
        let _ = (metadata.u32(key), metadata.f32(key), metadata.bool(key), metadata.str(key));
        let _ = (metadata.strings(key), metadata.i32s(key), metadata.f32s(key));
    }
    // The config reads a tensor as well, and a file only opens as a file.
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    let gguf = Gguf::open(file.path()).expect("it was parsed before");
    if let Ok(config) = Config::from_gguf(&gguf) {
        assert_eq!(config.windows.len(), config.layers);
        let (frequencies, scale) = config.inv_freq();
        assert_eq!(frequencies.len(), config.head_dim / 2);
        assert!(scale.is_finite());
    }
});
