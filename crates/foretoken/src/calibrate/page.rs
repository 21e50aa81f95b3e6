//! The page with the reliability diagrams.

use anyhow::Result;
use serde_json::Value;
use spec::reliability;

use super::{BINS, Place};
use crate::report::{Axis, Chart, Mark, Page, Point, Scale, Series};

/// The page of a calibration; `report` is its JSON.
pub(super) fn render(places: &[Place], report: &Value) -> Result<String> {
    let text = |field: &str| report[field].as_str().unwrap_or_default().to_owned();
    let mut page = Page::new(&format!("Confidences of {}", text("drafter")));
    page.paragraph(
        "How likely drafts were said to stand, all those before them included, and how often they did, on answers by which \
         nothing was fitted. On the diagonal what is said is true.",
    );
    let charts = places.iter().enumerate().map(|(at, place)| chart(at, place)).collect::<Result<Vec<_>>>()?;
    page.charts(&charts);
    page.heading("By place");
    let heads = ["place", "drafts", "stood", "temperature", "shift", "error before", "error after"];
    let row = |(at, place): (usize, &Place)| -> Result<Vec<String>> {
        let [before, after] = place.errors()?;
        Ok(vec![
            (at + 1).to_string(),
            place.said[0].len().to_string(),
            format!("{:.1} %", 100.0 * place.stood()),
            format!("{:.3}", place.temperature),
            format!("{:.3}", place.shift),
            format!("{:.2} %", 100.0 * before),
            format!("{:.2} %", 100.0 * after),
        ])
    };
    page.table(&heads, &places.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?);
    page.heading("Conditions");
    page.facts(&["model", "machine", "version", "commit", "date", "command"].map(|field| (field, text(field))));
    Ok(page.finish())
}

fn chart(at: usize, place: &Place) -> Result<Chart> {
    let [before, after] = place.errors()?;
    let points = |said: &[(f64, bool)]| -> Result<Vec<Point>> {
        let bins = reliability(said, BINS)?;
        let full = bins.iter().filter(|bin| bin.count > 0);
        Ok(full.map(|bin| Point::new(100.0 * bin.predicted, 100.0 * bin.observed)).collect())
    };
    let series = |name: &str, colour, mark, points| Series { name: name.to_owned(), colour, mark, points };
    Ok(Chart {
        title: format!("Draft {}", at + 1),
        about: format!(
            "Calibration error {:.2} % as the drafter says it, {:.2} % calibrated",
            100.0 * before,
            100.0 * after
        ),
        x: Axis::new("said to stand, %", Scale::Linear),
        y: Axis::new("stood, %", Scale::Linear),
        series: vec![
            series("true", 9, Mark::Dashed, vec![Point::new(0.0, 0.0), Point::new(100.0, 100.0)]),
            series("as the drafter says it", 1, Mark::Line, points(&place.said[0])?),
            series("calibrated", 0, Mark::Line, points(&place.said[1])?),
        ],
        rules: Vec::new(),
    })
}
