//! A page that stands alone: style, charts and tables in one HTML file that asks nothing of the network.

use std::fmt::Write;

/// Follows the reader's choice of light or dark.
const STYLE: &str = "
:root{color-scheme:light dark;--ground:#fcfcfb;--panel:#fff;--ink:#1c1e21;--dim:#5d646d;--hair:#e4e6e9;--axis:#aeb4bc;
--c0:#2a6fd6;--c1:#c2560c;--c2:#178256;--c3:#8748c7;--c4:#c5345a;--c5:#0b7f93;--c6:#8a6d00;--c7:#4c4fd0;--c8:#a8327f;
--c9:#5f7d1e}
@media(prefers-color-scheme:dark){:root{--ground:#14161a;--panel:#1b1e23;--ink:#e8eaed;--dim:#9aa3ad;--hair:#2c3138;
--axis:#5a636e;--c0:#6ba4ff;--c1:#f09650;--c2:#45bd88;--c3:#b690f5;--c4:#f2748f;--c5:#45bfd2;--c6:#d9b93b;--c7:#9a9cff;
--c8:#e884c6;--c9:#a5c95b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1360px;padding:28px 24px 64px;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
h1{margin:0 0 6px;font-size:26px;line-height:1.2}h2{margin:36px 0 10px;font-size:19px}
p{margin:6px 0 12px;max-width:82ch;color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:16px}
figure{margin:0;padding:14px 16px 8px;background:var(--panel);border:1px solid var(--hair);border-radius:10px}
figcaption b{display:block;font-size:15px}figcaption span{display:block;font-size:13px;color:var(--dim)}
svg{display:block;width:100%;height:auto;margin-top:4px;overflow:visible}
.grid{stroke:var(--hair)}.axis{stroke:var(--axis)}.rule{stroke:var(--dim);stroke-dasharray:2 3}
text{fill:var(--dim);font-size:12px}.label{font-size:12.5px}.value{fill:var(--ink);font-size:11.5px}
.middle{text-anchor:middle}.end{text-anchor:end}.tick{font-variant-numeric:tabular-nums}
.line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}.line.dashed{stroke-width:1.6;stroke-dasharray:5 4}
.dot{fill:var(--c);stroke:var(--panel);stroke-width:1}.bar{fill:var(--c)}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.c6{--c:var(--c6)}.c7{--c:var(--c7)}.c8{--c:var(--c8)}.c9{--c:var(--c9)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:8px 0 0;padding:0;list-style:none;font-size:13px}
.legend li{display:flex;align-items:center;gap:7px}
.legend i{width:18px;border-top:3px solid var(--c)}.legend i.dashed{border-top-style:dashed;border-top-width:2px}
.legend i.dot,.legend i.bar{width:11px;height:11px;border:0;background:var(--c);border-radius:2px}
.legend i.dot{border-radius:50%}
.scroll{overflow-x:auto;background:var(--panel);border:1px solid var(--hair);border-radius:10px;margin:10px 0}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 11px;text-align:right;white-space:nowrap;border-top:1px solid var(--hair)}
tr:first-child>*{border-top:0}th{font-weight:600;color:var(--dim)}
th:first-child,td:first-child{text-align:left}
table.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}table.facts th{text-align:left;vertical-align:top}
@media(max-width:560px){body{padding:20px 12px 48px}figure{overflow-x:auto}svg{min-width:540px}}
code{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
";

/// A page in the making.
pub(crate) struct Page {
    title: String,
    body: String,
}

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        let title = escape(title);
        Self { body: format!("<h1>{title}</h1>\n"), title }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        self.put(format_args!("<h2>{}</h2>\n", escape(text)));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.put(format_args!("<p>{}</p>\n", escape(text)));
    }

    /// Charts beside each other as the window allows.
    pub(crate) fn charts(&mut self, charts: &[super::chart::Chart]) {
        let charts: String = charts.iter().map(super::chart::Chart::to_html).collect();
        self.put(format_args!("<div class=\"charts\">\n{charts}</div>\n"));
    }

    /// A table of figures: the first column names the row.
    pub(crate) fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let cells = |cells: &mut dyn Iterator<Item = &str>, tag: &str| -> String {
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
        };
        let head = cells(&mut heads.iter().copied(), "th");
        let body: String = (rows.iter())
            .map(|row| format!("<tr>{}</tr>\n", cells(&mut row.iter().map(String::as_str), "td")))
            .collect();
        self.put(format_args!("<div class=\"scroll\"><table><tr>{head}</tr>\n{body}</table></div>\n"));
    }

    /// A table of names and what they are.
    pub(crate) fn facts(&mut self, facts: &[(&str, String)]) {
        let row =
            |(name, value): &(&str, String)| format!("<tr><th>{}</th><td>{}</td></tr>\n", escape(name), escape(value));
        let rows: String = facts.iter().map(row).collect();
        self.put(format_args!("<div class=\"scroll\"><table class=\"facts\">{rows}</table></div>\n"));
    }

    /// The whole page.
    pub(crate) fn finish(self) -> String {
        let Self { title, body } = self;
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
        )
    }

    fn put(&mut self, part: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = self.body.write_fmt(part);
    }
}

/// `text` as text of HTML, between tags or in an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_stays_text() {
        let mut page = Page::new("<script>");
        page.heading("a & b");
        page.paragraph("\"quoted\"");
        page.table(&["<b>"], &[vec!["<i>".into()]]);
        page.facts(&[("it's", "<u>".into())]);
        let html = page.finish();
        for tag in ["<script", "<b>", "<i>", "<u>"] {
            assert!(!html.contains(tag), "{tag}");
        }
        assert!(html.contains("a &amp; b") && html.contains("it&#39;s"));
    }

    #[test]
    fn a_page_asks_nothing_of_the_network() {
        let html = Page::new("x").finish();
        assert!(
            !html.contains("http") && !html.contains("src=") && !html.contains("url(") && !html.contains("@import")
        );
    }
}
