//! Drafters from the files that PyTorch wrote draft as those from safetensors do.

use std::io::Write;

use super::arithmetic::{first_generation, hydra, modules};
use super::plain::Numbers;
use super::*;

/// Writes tensors as `torch.save` would: a stored zip archive with a pickle of protocol 2.
fn save(file: &Path, tensors: &Numbers) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(file).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut pickle = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
    let text = |pickle: &mut Vec<u8>, text: &str| {
        pickle.push(b'X');
        pickle.extend((text.len() as u32).to_le_bytes());
        pickle.extend(text.as_bytes());
    };
    let counts = |pickle: &mut Vec<u8>, counts: &[usize]| {
        pickle.push(b'(');
        counts.iter().for_each(|&count| {
            pickle.push(b'J');
            pickle.extend((count as u32).to_le_bytes());
        });
        pickle.push(b't');
    };
    for (key, (name, shape, values)) in tensors.all().enumerate() {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        zip.start_file(format!("archive/data/{key}"), stored).unwrap();
        zip.write_all(&bytes).unwrap();
        text(&mut pickle, name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nFloatStorage\n");
        text(&mut pickle, &key.to_string());
        text(&mut pickle, "cuda:0");
        pickle.push(b'J');
        pickle.extend((values.len() as u32).to_le_bytes());
        pickle.extend(b"tQK\x00");
        counts(&mut pickle, shape);
        let strides: Vec<usize> = (1..=shape.len()).map(|from| shape[from..].iter().product()).collect();
        counts(&mut pickle, &strides);
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    zip.start_file("archive/data.pkl", stored).unwrap();
    zip.write_all(&pickle).unwrap();
    zip.finish().unwrap();
}

#[test]
fn drafters_of_pytorch_files_are_those_of_safetensors() {
    let (heads, heads_config) = hydra(true, 23);
    for (name, (draft, config)) in [
        ("pytorch_model.bin", first_generation(29)),
        ("pytorch_model.bin", modules(2, 31)),
        ("hydra_lm_head.pt", (heads, heads_config)),
    ] {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        draft.write(one.path(), &config);
        std::fs::write(other.path().join("config.json"), config.to_string()).unwrap();
        save(&other.path().join(name), &draft);
        let logits = |dir: &tempfile::TempDir| {
            let (mut rounds, mut drafter) = Rounds::with(dir.path(), 3);
            (drafter.name(), rounds.recorded(drafter.as_mut(), 3))
        };
        assert_eq!(logits(&one), logits(&other), "{name}");
    }
}
