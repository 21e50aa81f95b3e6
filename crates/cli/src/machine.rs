//! The machine that a figure was measured on, and the memory that the process has used.

use std::fs;

use serde_json::{Value, json};

/// Instruction sets worth naming beside a figure: those that matrix kernels are written for.
const TELLING_FLAGS: [&str; 13] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
];

/// What a report says of the machine. Fields that the system does not tell are null. The load before a measurement
/// says whether the machine was its own.
pub fn describe() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features")).unwrap_or_default();
    let flags: Vec<&str> = flags.split_whitespace().filter(|flag| TELLING_FLAGS.contains(flag)).collect();
    json!({
        "cpu": field(&cpuinfo, "model name"),
        "flags": flags,
        "cores": cores(),
        "memory_bytes": proc_bytes("/proc/meminfo", "MemTotal"),
        "load": load(),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// The processor's name.
pub fn cpu() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The machine in one line, for people.
pub fn one_line() -> String {
    let load = load().map(|load| format!(", load {load:.1}")).unwrap_or_default();
    format!("{}, {} cores{load}", cpu(), cores())
}

/// Processes that ran or wanted to run in the last minute, on average.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The most memory that the process has held at once, in bytes; `None` where the system does not tell.
pub fn peak_memory() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmHWM")
}

/// Memory that a new program could have without others losing theirs, in bytes; `None` where the system does not tell.
pub fn free_memory() -> Option<u64> {
    proc_bytes("/proc/meminfo", "MemAvailable")
}

fn proc_bytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let kib: u64 = field(&text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, v)| v.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files() {
        let text = "processor\t: 0\nmodel name\t: A Chip: fast\nVmHWM:\t  1234 kB\n";
        assert_eq!(field(text, "model name"), Some("A Chip: fast"));
        assert_eq!(field(text, "VmHWM"), Some("1234 kB"));
        assert_eq!(field(text, "absent"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory() {
        assert!(peak_memory().is_some_and(|bytes| bytes > 1 << 16));
    }
}
