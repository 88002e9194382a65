// Nodes of a Mainline DHT, written by others: `node dht.mjs CONTACT HOST ...`, one node at each IP address.
//
// Prints {"nodes": N} once they know the contact. Each line of its input is {"announce": key, "port": N} or {"lookup": key}
// with 40 hexadecimal digits, for the first node; the answers are {"announced": key} and {"found": key, "peers": [...]}.

import { createInterface } from 'node:readline'
import DHT from 'bittorrent-dht'

const [contact, ...hosts] = process.argv.slice(2)
const [contactHost, contactPort] = contact.split(':')
const say = (record) => console.log(JSON.stringify(record))
const nodes = await Promise.all(hosts.map((host) => new Promise((resolve) => {
  // Asking others would open the socket, at any address, before it listens at its own.
  const node = new DHT({ bootstrap: false })
  node.on('node', () => resolve(node))
  node.listen(6881, host, () => node.addNode({ host: contactHost, port: Number(contactPort) }))
})))
const [first] = nodes
say({ nodes: nodes.length })
createInterface({ input: process.stdin }).on('line', (line) => {
  const { announce, port, lookup } = JSON.parse(line)
  // It announces to the nodes that it met when it looked the key up last.
  if (announce) return first.lookup(announce, () => first.announce(announce, port, () => say({ announced: announce })))
  const peers = []
  const add = ({ host, port }) => peers.push([host, port])
  first.on('peer', add)
  first.lookup(lookup, () => {
    first.off('peer', add)
    say({ found: lookup, peers })
  })
}).on('close', () => process.exit())
