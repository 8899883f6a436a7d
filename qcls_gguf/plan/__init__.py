"""Token trees and the plans of decodes."""
