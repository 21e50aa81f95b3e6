//! The function `strftime_now(format)`: today's date for templates that tell it to the model. In UTC, as nothing here
//! knows the user's time zone.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, seconds)
        .map_err(|code| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: %{code} is not supported")))
}

/// A moment as its calendar date.
struct Date {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: u64,
}

/// The Gregorian date of a day counted from 1970-01-01.
fn date(days: u64) -> Date {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = left + 1;
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    Date { year, month, day: left + 1, day_of_year, weekday: (days + 4) % 7 }
}

/// C's `strftime` in the C locale; `Err` is the code that is not supported. `%-d` is `%d` without its padding.
fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let now = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (month, weekday) = (MONTHS[now.month as usize - 1], DAYS[now.weekday as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        let field = match code {
            Some('Y') => now.year.to_string(),
            Some('y') => two(now.year % 100),
            Some('m') => two(now.month),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('d') => two(now.day),
            Some('e') => format!("{:2}", now.day),
            Some('j') if bare => now.day_of_year.to_string(),
            Some('j') => format!("{:03}", now.day_of_year),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(hour12),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{}-{:02}-{:02}", now.year, now.month, now.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => return Err(other.map(String::from).unwrap_or_default()),
        };
        out.push_str(&field);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    // What Python's datetime.fromtimestamp(seconds, UTC).strftime answers.
    #[test]
    fn dates_are_right_around_leap_days_and_year_ends() {
        let expected = [
            (0, "1970-01-01 Thu 001 00:00:00"),
            (951_782_399, "2000-02-28 Mon 059 23:59:59"),
            (951_782_400, "2000-02-29 Tue 060 00:00:00"),
            (1_735_689_599, "2024-12-31 Tue 366 23:59:59"),
            (4_107_542_400, "2100-03-01 Mon 060 00:00:00"),
        ];
        for (seconds, text) in expected {
            assert_eq!(strftime("%Y-%m-%d %a %j %H:%M:%S", seconds).unwrap(), text);
        }
        assert_eq!(
            strftime("%d %B %Y, %-d %b %I %p 100%%", 951_782_399).unwrap(),
            "28 February 2000, 28 Feb 11 PM 100%"
        );
        assert_eq!(strftime("%Q", 0).unwrap_err(), "Q");
        assert!(strftime("%", 0).is_err());
    }
}
