use crate::error::{Error, Result};

/// Options that the host gave when it loaded the plugin: lines `name = value`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostOptions {
    entries: Vec<(String, String)>,
}

impl HostOptions {
    /// Parses lines; blank ones are skipped, a name may stand once.
    pub fn parse(text: &str) -> Result<Self> {
        let mut options = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let pair = line.split_once('=');
            let (name, value) = pair.ok_or_else(|| Error::invalid("options", "name = value", line))?;
            let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
            if options.entries.iter().any(|(known, _)| *known == name) {
                return Err(Error::invalid(format!("options.{name}"), "one line", "two"));
            }
            options.entries.push((name, value));
        }
        Ok(options)
    }

    /// The value of `name`, taken out.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let index = self.entries.iter().position(|(known, _)| known == name)?;
        Some(self.entries.remove(index).1)
    }

    /// An error if something is left: an option that nobody knows is not passed over.
    pub fn finish(&self) -> Result<()> {
        match self.entries.first() {
            None => Ok(()),
            Some((name, value)) => Err(Error::invalid(format!("options.{name}"), "no such option", value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_once_and_leftovers_are_errors() {
        let mut options = HostOptions::parse("fault = tie_order\n\n panic=enqueue\n").unwrap();
        assert_eq!(options.take("fault").as_deref(), Some("tie_order"));
        assert_eq!(options.take("fault"), None);
        assert_eq!(
            options.finish().unwrap_err().to_string(),
            "options.panic: want no such option, got enqueue"
        );
        assert_eq!(options.take("panic").as_deref(), Some("enqueue"));
        options.finish().unwrap();
        assert!(HostOptions::parse("a = 1\na = 2").is_err());
        assert!(HostOptions::parse("a").is_err());
    }
}
