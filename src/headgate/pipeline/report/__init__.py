"""The page of a report: `page` puts it together from `charts`, in the `style`, with amounts in `units`."""
