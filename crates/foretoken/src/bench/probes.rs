//! The machine's ceilings: what reading memory and multiplying can reach at best, on one thread and on all.

use std::io::{self, Write};

use kernels::{Isa, probe};
use serde_json::{Value, json};

/// Larger than any cache in use, so that every sweep comes from memory.
const BIG_BUFFER: usize = 1 << 30;
const REPEATS: usize = 7;

/// What one number of threads reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ceilings {
    threads: usize,
    /// Bytes a second from [`BIG_BUFFER`].
    pub(crate) read_big: f64,
    /// Bytes a second from a buffer of the size of the weights, swept again and again as decoding does.
    pub(crate) read_weights: f64,
    int8: f64,
    f32: f64,
}

/// Measures one thread and, if there are more, all of them. The last is what the model runs with.
pub(crate) fn measure(isa: Isa, threads: usize, weight_bytes: usize) -> Vec<Ceilings> {
    let counts = if threads > 1 { vec![1, threads] } else { vec![1] };
    let one = |threads| Ceilings {
        threads,
        read_big: probe::read_bandwidth(isa, threads, BIG_BUFFER, REPEATS),
        read_weights: probe::read_bandwidth(isa, threads, weight_bytes, 3 * REPEATS),
        int8: probe::int8_rate(isa, threads, REPEATS),
        f32: probe::f32_rate(isa, threads, REPEATS),
    };
    counts.into_iter().map(one).collect()
}

impl Ceilings {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "threads": self.threads,
            "read_1gib_bytes_per_s": self.read_big,
            "read_weights_bytes_per_s": self.read_weights,
            "int8_multiply_adds_per_s": self.int8,
            "f32_multiply_adds_per_s": self.f32,
        })
    }
}

/// Prints the ceilings as a table, a column for each number of threads.
pub(crate) fn print(out: &mut impl Write, ceilings: &[Ceilings], weight_bytes: usize) -> io::Result<()> {
    write!(out, "{:<34}", "the machine at best (medians)")?;
    for one in ceilings {
        write!(out, "{:>14}", format!("{} thread{}", one.threads, if one.threads == 1 { "" } else { "s" }))?;
    }
    let weights = format!("read {:.1} MB, as the weights, GB/s", weight_bytes as f64 / 1e6);
    let row = |out: &mut dyn Write, name: &str, value: fn(&Ceilings) -> f64| -> io::Result<()> {
        write!(out, "\n{name:<34}")?;
        ceilings.iter().try_for_each(|one| write!(out, "{:>14.1}", value(one) / 1e9))
    };
    row(out, "read 1 GiB, GB/s", |one| one.read_big)?;
    row(out, &weights, |one| one.read_weights)?;
    row(out, "int8 multiply-adds, G/s", |one| one.int8)?;
    row(out, "f32 multiply-adds, G/s", |one| one.f32)?;
    writeln!(out, "\n")
}
