//! Measures products.
use std::time::Instant;
fn main() {
    let (m, k, n) = (512usize, 576usize, 8192usize);
    for par in [gemm::Parallelism::None, gemm::Parallelism::Rayon(2)] {
        for (name, m, k, n, trans) in [("x Wt", m, k, n, true), ("g W", m, n, k, false), ("x Wt 384", 384, 576, 1536, true), ("64 rows", 64, 576, 8192, true), ("gT x", 1536, 384, 576, false), ("64 back", 64, 8192, 576, false), ("18x64x200", 18, 64, 200, true)] {
            let x = vec![0.5f32; m * k];
            let w = vec![0.25f32; k * n];
            let mut out = vec![0.0f32; m * n];
            let reps = (20_000_000_000 / (2 * m * k * n)).max(3);
            let (rs, cs) = if trans { (1, k as isize) } else { (n as isize, 1) };
            let mut best = f64::MAX;
            for _ in 0..3 {
                let t = Instant::now();
                for _ in 0..reps {
                    unsafe { gemm::gemm(m, n, k, out.as_mut_ptr(), 1, n as isize, false, x.as_ptr(), 1, k as isize, w.as_ptr(), cs, rs, 0.0, 1.0, false, false, false, par) };
                }
                best = best.min(t.elapsed().as_secs_f64() / reps as f64);
            }
            println!("{par:?} {name} {m}x{k}x{n}: {:.1} GFLOP/s", 2.0 * (m * k * n) as f64 / best / 1e9);
        }
    }
}
