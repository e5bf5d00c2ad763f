//! Templates of markup: what they are given is escaped, and what they name must be there.

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

/// Templates that were compiled into the program.
pub(super) struct Templates(Environment<'static>);

impl Templates {
    /// Takes names and sources.
    pub(super) fn new(sources: &[(&'static str, &'static str)]) -> Self {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("two switches are no syntax error");
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        for (name, source) in sources {
            let added = environment.add_template(name, source);
            added.expect("the tests render every template");
        }
        Self(environment)
    }

    /// Writes a template filled in from `view`.
    ///
    /// # Errors
    /// When `out` fails.
    pub(super) fn write(
        &self,
        name: &str,
        view: &impl Serialize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let template = self.0.get_template(name);
        let text = template.and_then(|template| template.render(Serde(view)));
        out.write_all(text.expect("the tests render every template").as_bytes())
    }
}
