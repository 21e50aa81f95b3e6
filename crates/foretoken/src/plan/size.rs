//! Sizes in bytes as people write and read them.

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// `24GiB`, `24 GB`, `1.5TiB`, `512MiB` or a bare number of bytes, in bytes; letters may be small.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, bytes)| Some((lower.strip_suffix(&name.to_ascii_lowercase())?, *bytes)))
        .unwrap_or((&lower, 1));
    let number = number.trim_end();
    let wrong = || format!("{text:?} is no size; write it as 24GiB, 24GB or 512MiB");
    // `f64` would also read "inf", "nan" and "1e9".
    if number.is_empty() || !number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(wrong());
    }
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(|| format!("{text:?} is above 2^64 bytes"));
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(format!("{text:?} is above 2^64 bytes")) }
}

/// A size in the largest binary unit of which it has at least one.
pub(super) fn brief(bytes: u64) -> String {
    match UNITS[..4].iter().rev().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A number with a comma between each three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_kinds_of_units() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("24GB", 24_000_000_000),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("1.5TiB", 3 << 39),
            ("2KB", 2000),
            ("7B", 7),
            ("4096", 4096),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", "-1GiB", "24G", "1e9", "inf", "nan", "1.2.3GB", ".", "24 apples"] {
            assert!(parse_size(text).is_err_and(|error| error.contains("24GiB")), "{text}");
        }
        for text in ["99999999999TiB", "18446744073709551615.5", "18446744073709551616"] {
            assert!(parse_size(text).is_err_and(|error| error.contains("2^64")), "{text}");
        }
    }

    #[test]
    fn sizes_and_numbers_are_shown_for_people() {
        assert_eq!([0, 1023, 1024, 5 << 28].map(brief), ["0 B", "1023 B", "1.00 KiB", "1.25 GiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
