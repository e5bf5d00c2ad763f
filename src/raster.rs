//! A drawing (SVG) as pixels (PNG), its text in the fonts of this machine; a text that none of them can show is an error.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query};
use resvg::usvg::{Group, Node, Options, Tree};

/// Pixels for each unit of the drawing: sharp on today's screens.
const SCALE: f32 = 2.0;

/// Fonts of this machine.
pub(crate) struct Fonts(Arc<Database>);

impl Fonts {
    /// Finds them.
    ///
    /// # Errors
    /// When there are none.
    pub(crate) fn of_this_machine() -> Result<Self> {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        let sans = Query {
            families: &[Family::SansSerif],
            ..Query::default()
        };
        if fonts.query(&sans).is_none() {
            let first = fonts.faces().find_map(|face| face.families.first());
            let Some((family, _)) = first.cloned() else {
                bail!(
                    "no font was found on this machine, and a PNG needs one (install one, as Debian's fonts-noto-cjk, or take --svg)"
                );
            };
            fonts.set_sans_serif_family(family);
        }
        Ok(Self(Arc::new(fonts)))
    }

    /// Draws an SVG.
    ///
    /// # Errors
    /// When no font has some of its text, or the picture would be too large.
    pub(crate) fn draw(&self, svg: &str) -> Result<Vec<u8>> {
        let options = Options {
            fontdb: Arc::clone(&self.0),
            ..Options::default()
        };
        let tree = Tree::from_str(svg, &options).context("the chart cannot be drawn")?;
        check_glyphs(tree.root())?;
        let size = tree.size().to_int_size().scale_by(SCALE);
        let pixels = size.and_then(|size| Pixmap::new(size.width(), size.height()));
        let mut pixels = pixels.context("the chart is too large for a PNG (take --svg)")?;
        resvg::render(
            &tree,
            Transform::from_scale(SCALE, SCALE),
            &mut pixels.as_mut(),
        );
        pixels
            .encode_png()
            .context("the chart cannot be written as a PNG")
    }
}

/// Refuses a drawing some of whose text would be an empty box, or nothing.
fn check_glyphs(group: &Group) -> Result<()> {
    for node in group.children() {
        match node {
            Node::Group(group) => check_glyphs(group)?,
            Node::Text(text) => {
                let glyphs = text
                    .layouted()
                    .iter()
                    .flat_map(|span| &span.positioned_glyphs);
                let missing = glyphs.clone().find(|glyph| glyph.id.0 == 0);
                let shown = glyphs.count();
                let text: String = text.chunks().iter().map(|chunk| chunk.text()).collect();
                ensure!(
                    missing.is_none() && (shown > 0 || text.trim().is_empty()),
                    "no font of this machine can show `{}` (install one that can, as Debian's fonts-noto-cjk, or take --svg)",
                    missing
                        .map(|glyph| glyph.text.trim())
                        .filter(|letter| !letter.is_empty())
                        .unwrap_or(&text)
                );
            }
            Node::Path(_) | Node::Image(_) => {}
        }
    }
    Ok(())
}
