//! Curves with two logarithmic axes, as SVG that reads on light and on dark ground.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
const INK: &str = "#808080";
const COLOURS: [&str; 4] = ["#3b82c4", "#d9822b", "#4c9f5a", "#a05fb4"];

/// A drawing: what is measured against what.
pub struct Chart<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below the horizontal axis.
    pub x_label: &'a str,
    /// Beside the vertical axis.
    pub y_label: &'a str,
    /// A horizontal line with its words, if there is a bar.
    pub bar: Option<(f64, &'a str)>,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A named row of points; both coordinates are above zero.
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// An axis from one power of ten to another.
struct Axis {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor() as i32;
        let high = values.fold(0.0, f64::max).log10().ceil() as i32;
        Self { low, high: high.max(low + 1), from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    fn powers(&self) -> impl Iterator<Item = f64> {
        (self.low..=self.high).map(|power| 10_f64.powi(power))
    }
}

impl Chart<'_> {
    /// The drawing.
    pub fn draw(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter().copied());
        let bar = self.bar.map(|(value, _)| value);
        let x = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::over(points().map(|point| point.1).chain(bar), HEIGHT - BOTTOM, TOP);
        let mut svg = String::new();
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n<title>{}</title>",
            self.title
        )
        .expect("a string");
        text(&mut svg, (LEFT, 24.0), "start", &format!("<tspan font-size=\"15\">{}</tspan>", self.title));
        self.draw_grid(&mut svg, &x, &y);
        if let Some((value, words)) = self.bar {
            let at = y.place(value);
            line(&mut svg, (LEFT, at), (WIDTH - RIGHT, at), "stroke-dasharray=\"6 4\" stroke-width=\"1.5\"");
            text(&mut svg, (WIDTH - RIGHT, at - 6.0), "end", words);
        }
        for (index, curve) in self.curves.iter().enumerate() {
            draw_curve(&mut svg, curve, COLOURS[index % COLOURS.len()], &x, &y);
            let legend = (LEFT + 14.0 + 150.0 * index as f64, TOP - 4.0);
            let colour = COLOURS[index % COLOURS.len()];
            text(&mut svg, legend, "start", &format!("<tspan fill=\"{colour}\">&#9679; {}</tspan>", curve.name));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_grid(&self, svg: &mut String, x: &Axis, y: &Axis) {
        for value in x.powers() {
            let at = x.place(value);
            line(svg, (at, TOP), (at, HEIGHT - BOTTOM), "stroke-opacity=\"0.35\"");
            text(svg, (at, HEIGHT - BOTTOM + 18.0), "middle", &power(value));
        }
        for value in y.powers() {
            let at = y.place(value);
            line(svg, (LEFT, at), (WIDTH - RIGHT, at), "stroke-opacity=\"0.35\"");
            text(svg, (LEFT - 8.0, at + 4.0), "end", &power(value));
        }
        text(svg, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0), "middle", self.x_label);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        writeln!(
            svg,
            "<text transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            self.y_label
        )
        .expect("a string");
    }
}

fn draw_curve(svg: &mut String, curve: &Curve, colour: &str, x: &Axis, y: &Axis) {
    let places: Vec<_> = curve.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
    let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>", path.join(" "))
        .expect("a string");
    for (x, y) in places {
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>").expect("a string");
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{INK}\" {style}/>",
        from.0, from.1, to.0, to.1
    )
    .expect("a string");
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{words}</text>", at.0, at.1)
        .expect("a string");
}

fn power(value: f64) -> String {
    match value {
        1e6.. => format!("{} M", value / 1e6),
        1e3.. => format!("{} k", value / 1e3),
        _ => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_inside_the_axes() {
        let curve = Curve { name: "nested".to_owned(), points: vec![(1e3, 20.0), (1e6, 45.0)] };
        let chart = Chart { title: "t", x_label: "x", y_label: "y", bar: Some((100.0, "bar")), curves: vec![curve] };
        let svg = chart.draw();
        assert!(svg.contains("cx=\"64.0\"") && svg.contains("cx=\"620.0\""), "{svg}");
        assert!(svg.contains("1 k") && svg.contains("1 M"));
    }
}
