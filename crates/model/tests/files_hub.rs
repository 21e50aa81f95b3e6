//! The hub, played by a small server: what is fetched, cached, resumed and refused.

mod files_support;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use files_support::{fixtures, model, says};
use model::config::Config;
use model::source::{Kind, Settings, SourceError};
use model::weights::Weights;
use serde_json::json;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `o/m`.
#[derive(Default)]
struct Hub {
    files: HashMap<String, Vec<u8>>,
    /// Requests that came, as `path` or `path range`.
    asked: Mutex<Vec<String>>,
    /// Break so many downloads off after half of what is asked for.
    breaks: AtomicUsize,
    /// Send one wrong byte.
    corrupt: AtomicBool,
    /// Stop sending in the middle of a file.
    stall: AtomicBool,
    /// Answer everything with this status.
    status: Option<u16>,
}

impl Hub {
    fn of(files: &[(&str, Vec<u8>)]) -> Hub {
        Hub { files: files.iter().map(|(n, b)| (n.to_string(), b.clone())).collect(), ..Hub::default() }
    }

    /// The tiny Llama of the fixtures.
    fn llama() -> Hub {
        let read = |name: &str| fs::read(fixtures().join("targets/llama").join(name)).unwrap();
        let files = ["config.json", "generation_config.json", "model.safetensors"].map(|n| (n, read(n)));
        let mut hub = Hub::of(&files);
        hub.files.insert("tokenizer.json".into(), b"{}".to_vec());
        hub.files.insert("README.md".into(), b"not asked for".to_vec());
        hub
    }

    /// Serves in a thread until the test ends; gives the address.
    fn serve(self) -> (Arc<Hub>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let hub = Arc::new(self);
        let served = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = served.clone();
                std::thread::spawn(move || hub.answer(stream));
            }
        });
        (hub, address)
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let path = first.split(' ').nth(1).unwrap_or_default().to_string();
        let range = headers.iter().find_map(|h| h.to_lowercase().strip_prefix("range: bytes=").map(str::to_string));
        self.asked.lock().unwrap().push(format!("{path} {}", range.clone().unwrap_or_default()).trim().into());
        // A client that hangs up early is part of the game.
        let _ = match (self.status, path.split_once(&format!("/resolve/{COMMIT}/"))) {
            (Some(status), _) => {
                write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            }
            (None, None) if path.starts_with("/api/models/o/m/revision/main") => self.list(&mut stream),
            (None, Some(("/o/m", name))) if self.files.contains_key(name) => {
                self.file(&mut stream, &self.files[name], &range.unwrap_or_default())
            }
            _ => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        };
    }

    fn list(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let files = self.files.iter().map(|(name, bytes)| {
            let lfs = name.ends_with(".safetensors").then(|| json!({"sha256": sha256(bytes), "size": bytes.len()}));
            json!({"rfilename": name, "size": bytes.len(), "lfs": lfs})
        });
        let body = json!({"sha": COMMIT, "siblings": files.collect::<Vec<_>>()}).to_string();
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }

    fn file(&self, stream: &mut TcpStream, bytes: &[u8], range: &str) -> std::io::Result<()> {
        let (from, to) = range.split_once('-').unwrap_or(("0", ""));
        let from: usize = from.parse().unwrap();
        let to = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
        let (etag, all) = (sha256(bytes), bytes.len());
        if from >= all {
            return write!(stream, "HTTP/1.1 416 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        let mut part = bytes[from..to].to_vec();
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\n\
             Content-Range: bytes {from}-{}/{all}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            to - 1,
            part.len()
        )?;
        let large = part.len() > 10_000;
        if large && self.corrupt.load(Ordering::Relaxed) {
            part[5_000] ^= 1;
        }
        let broken =
            large && self.breaks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        let stalled = large && self.stall.load(Ordering::Relaxed);
        let cut = if broken || stalled { part.len() / 2 } else { part.len() };
        stream.write_all(&part[..cut])?;
        if stalled {
            std::thread::sleep(Duration::from_secs(20));
        }
        Ok(())
    }

    fn asked_for(&self, name: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|a| a.contains(name)).cloned().collect()
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn settings(dir: &Path, endpoint: &str) -> Settings {
    Settings {
        cache: dir.join("cache"),
        hub_cache: dir.join("hub"),
        endpoint: Some(endpoint.into()),
        token: None,
        offline: false,
        python: "none".into(),
        answer_limit: Duration::from_secs(5),
        stall_limit: Duration::from_secs(10),
    }
}

fn locate(settings: &Settings, id: &str) -> Result<Kind, SourceError> {
    settings.locate(&id.parse()?, &()).map(|located| located.kind)
}

#[test]
fn a_repository_is_fetched_once_and_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, address) = Hub::llama().serve();
    let online = settings(dir.path(), &address);
    let Kind::Directory(path) = locate(&online, "o/m").unwrap() else { panic!("no directory") };
    let config = Config::from_dir(&path).unwrap();
    assert_eq!((config.layers, config.eos.as_slice()), (4, [254].as_slice()));
    let weights = Weights::open_dir(&path).unwrap();
    weights.tensor("model.embed_tokens.weight", &[256, 64]).unwrap();
    assert!(path.join("tokenizer.json").exists() && !path.join("README.md").exists());
    // From now on, no network is needed: not by the branch, nor by the commit.
    let asked = hub.asked.lock().unwrap().len();
    let offline = Settings { offline: true, ..settings(dir.path(), "http://127.0.0.1:1") };
    for settings in [&online, &offline] {
        assert_eq!(locate(settings, "o/m").unwrap(), Kind::Directory(path.clone()));
        assert_eq!(locate(settings, &format!("o/m@{COMMIT}")).unwrap(), Kind::Directory(path.clone()));
    }
    assert_eq!(hub.asked.lock().unwrap().len(), asked);
    let cached = online.cached().unwrap();
    assert_eq!((cached.len(), cached[0].name.as_str(), cached[0].files), (1, "o/m", 4));
    assert!(cached[0].bytes > weights.bytes_on_disk());
    // Other programs would list every reference.
    let refs: Vec<_> = fs::read_dir(dir.path().join("hub/models--o--m/refs")).unwrap().collect();
    assert_eq!(refs.len(), 1);
}

#[test]
fn a_download_that_breaks_off_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, address) = Hub::llama().serve();
    hub.breaks.store(2, Ordering::Relaxed);
    let Kind::Directory(path) = locate(&settings(dir.path(), &address), "o/m").unwrap() else { panic!() };
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), hub.files["model.safetensors"]);
    let asked = hub.asked_for("model.safetensors");
    let continued = asked.iter().filter(|a| a.ends_with('-') && !a.ends_with(" 0-")).count();
    assert_eq!(continued, 2, "{asked:?}");
}

/// A process that died between the last byte and the rename leaves a partial file that is whole.
#[test]
fn a_partial_file_that_is_whole_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, address) = Hub::llama().serve();
    let weights = &hub.files["model.safetensors"];
    let blobs = dir.path().join("hub/models--o--m/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", sha256(weights))), weights).unwrap();
    let Kind::Directory(path) = locate(&settings(dir.path(), &address), "o/m").unwrap() else { panic!() };
    assert_eq!(&fs::read(path.join("model.safetensors")).unwrap(), weights);
}

#[test]
fn damaged_bytes_do_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, address) = Hub::llama().serve();
    hub.corrupt.store(true, Ordering::Relaxed);
    let online = settings(dir.path(), &address);
    says(locate(&online, "o/m"), &["o/m", "model.safetensors", "SHA-256", "removed"]);
    hub.corrupt.store(false, Ordering::Relaxed);
    locate(&online, "o/m").unwrap();
}

#[test]
fn shards_are_fetched_by_the_index() {
    let shard = |name: &str| {
        let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat()
    };
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#.to_vec();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", shard("a")),
        ("model-2.safetensors", shard("b")),
        ("model-3.safetensors", shard("c")),
    ];
    let dir = tempfile::tempdir().unwrap();
    let (_, address) = Hub::of(&files).serve();
    let Kind::Directory(path) = locate(&settings(dir.path(), &address), "o/m").unwrap() else { panic!() };
    let weights = Weights::open_dir(&path).unwrap();
    assert!(weights.has("a") && weights.has("b"));
    assert!(!path.join("model-3.safetensors").exists());
    let mut evil = files.clone();
    evil[2].1 = br#"{"weight_map": {"a": "../../x"}}"#.to_vec();
    let (_, address) = Hub::of(&evil).serve();
    let dir = tempfile::tempdir().unwrap();
    says(locate(&settings(dir.path(), &address), "o/m"), &["model.safetensors.index.json", "no sense"]);
}

#[test]
fn files_of_pytorch_are_fetched_where_there_is_nothing_else() {
    let (state, gguf) = (fs::read("tests/torch/state.bin").unwrap(), model("llama").bytes());
    let safetensors = fs::read(fixtures().join("targets/llama/model.safetensors")).unwrap();
    let index = br#"{"weight_map": {"a": "pytorch_model-1.bin"}}"#.to_vec();
    let shard = fs::read("tests/torch/shard1.bin").unwrap();
    let both = [("config.json", b"{}".to_vec()), ("tokenizer.json", b"{}".to_vec())];
    for (weights, fetched) in [
        (vec![("pytorch_model.bin", state.clone())], &["pytorch_model.bin"][..]),
        (vec![("medusa_lm_head.pt", state.clone())], &["medusa_lm_head.pt"]),
        (
            vec![("pytorch_model.bin.index.json", index), ("pytorch_model-1.bin", shard)],
            &["pytorch_model.bin.index.json", "pytorch_model-1.bin"],
        ),
        (vec![("pytorch_model.bin", state.clone()), ("model.safetensors", safetensors)], &["model.safetensors"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let address = Hub::of(&[&both[..], &weights[..]].concat()).serve().1;
        let online = settings(dir.path(), &address);
        let Kind::Directory(path) = locate(&online, "o/m").unwrap() else { panic!("{fetched:?}") };
        for (name, _) in &weights {
            assert_eq!(path.join(name).exists(), fetched.contains(name), "{name}");
        }
        assert!(!Weights::open_dir(&path).unwrap().names().is_empty());
        let offline = Settings { offline: true, ..online };
        assert_eq!(locate(&offline, "o/m").unwrap(), Kind::Directory(path));
    }
    let dir = tempfile::tempdir().unwrap();
    let files = [&both[..], &[("pytorch_model.bin", state), ("m.gguf", gguf)]].concat();
    let Kind::Gguf(_) = locate(&settings(dir.path(), &Hub::of(&files).serve().1), "o/m").unwrap() else { panic!() };
}

#[test]
fn a_drafter_without_a_tokenizer_is_found_without_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let state = fs::read("tests/torch/state.bin").unwrap();
    let files = [("config.json", b"{}".to_vec()), ("pytorch_model.bin", state)];
    let online = settings(dir.path(), &Hub::of(&files).serve().1);
    let kind = locate(&online, "o/m").unwrap();
    let offline = Settings { offline: true, ..settings(dir.path(), "http://127.0.0.1:1") };
    let unreachable = settings(dir.path(), "http://127.0.0.1:1");
    for settings in [&online, &offline, &unreachable] {
        assert_eq!(locate(settings, "o/m").unwrap(), kind);
    }
    says(locate(&unreachable, "o/other"), &["cannot be reached", "o/other"]);
}

#[test]
fn gguf_repositories() {
    let file = model("llama").bytes();
    let dir = tempfile::tempdir().unwrap();
    let one = Hub::of(&[("m.Q4_0.gguf", file.clone())]).serve().1;
    let online = settings(dir.path(), &one);
    let Kind::Gguf(path) = locate(&online, "o/m").unwrap() else { panic!() };
    assert_eq!(fs::read(&path).unwrap(), file);
    assert_eq!(locate(&Settings { offline: true, ..online }, "o/m").unwrap(), Kind::Gguf(path));

    let files = [("m.Q4_0.gguf", file.clone()), ("m.Q8_0.gguf", file.clone()), ("config.json", b"{}".to_vec())];
    let two = Hub::of(&files).serve().1;
    let dir = tempfile::tempdir().unwrap();
    let online = settings(dir.path(), &two);
    says(locate(&online, "o/m"), &["several GGUF files", "m.Q4_0.gguf", "m.Q8_0.gguf", "REPOSITORY:FILE"]);
    says(locate(&online, "o/m:Q5_K"), &["Q5_K", "m.Q4_0.gguf"]);
    for id in ["o/m:q8_0", "o/m:m.Q8_0.gguf"] {
        let Kind::Gguf(path) = locate(&online, id).unwrap() else { panic!() };
        assert_eq!(path.file_name().unwrap(), "m.Q8_0.gguf");
    }
    let none = Hub::of(&[("pytorch_model.bin", vec![0])]).serve().1;
    says(locate(&settings(dir.path(), &none), "o/m@main:x"), &["x"]);
    let dir = tempfile::tempdir().unwrap();
    says(locate(&settings(dir.path(), &none), "o/m"), &["neither safetensors, GGUF files nor weights of PyTorch"]);
}

#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for (status, parts) in [(404, ["no such repository", "HF_TOKEN"]), (401, ["access is denied", "HF_TOKEN"])] {
        let address = Hub { status: Some(status), ..Hub::default() }.serve().1;
        says(locate(&settings(dir.path(), &address), "o/m"), &[&["o/m", &address], &parts[..]].concat());
    }
    let address = Hub { status: Some(503), ..Hub::default() }.serve().1;
    says(locate(&settings(dir.path(), &address), "o/m"), &["cannot be reached", "503"]);
    let offline = Settings { offline: true, ..settings(dir.path(), &address) };
    says(locate(&offline, "o/m"), &["not in the cache", "HF_HUB_OFFLINE"]);
}

#[test]
fn a_hub_out_of_reach_fails_soon() {
    let dir = tempfile::tempdir().unwrap();
    says(locate(&settings(dir.path(), "http://127.0.0.1:1"), "o/m"), &["cannot be reached", "o/m"]);
    says(locate(&settings(dir.path(), "http://no-such-host.invalid"), "o/m"), &["cannot be reached", "o/m"]);
    // One that takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let limits = Settings { answer_limit: Duration::from_millis(300), ..settings(dir.path(), &address) };
    says(locate(&limits, "o/m"), &["cannot be reached", "no answer within 0.3 seconds"]);
}

#[test]
fn a_download_that_stands_still_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, address) = Hub::llama().serve();
    hub.stall.store(true, Ordering::Relaxed);
    let limits = Settings { stall_limit: Duration::from_secs(3), ..settings(dir.path(), &address) };
    says(locate(&limits, "o/m"), &["model.safetensors", "nothing more within 3 seconds"]);
}
